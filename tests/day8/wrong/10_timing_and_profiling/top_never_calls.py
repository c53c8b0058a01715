# fails: top_operations::runs as -
import torch


def rows(fn):
    with torch.profiler.profile() as profiler:
        fn()
    return profiler.key_averages()


def top_operations(fn, count=5):
    with torch.profiler.profile() as profiler:
        pass
    return [row.key for row in profiler.key_averages()][:count] or [None.key]

# fails: top_operations::gives_as_many_names_as_asked as -
import torch


def rows(fn):
    with torch.profiler.profile() as profiler:
        fn()
    return profiler.key_averages()


def top_operations(fn, count=5):
    return [row.key for row in sorted(rows(fn), key=lambda row: -row.self_cpu_time_total)][:5]

# fails: top_operations::puts_the_longest_first as -
import torch


def top_operations(fn, count=5):
    with torch.profiler.profile() as prof:
        fn()
    return [e.name for e in sorted(prof.events(), key=lambda e: e.self_cpu_time_total, reverse=True)[:count]]

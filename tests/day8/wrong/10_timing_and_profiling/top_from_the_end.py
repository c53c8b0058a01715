# fails: top_operations::puts_the_longest_first as -
import torch


def top_operations(fn, count=5):
    with torch.profiler.profile() as prof:
        fn()
    rows = sorted(prof.key_averages(), key=lambda r: r.self_cpu_time_total, reverse=True)
    return [r.key for r in rows[-count:]]

# fails: top_operations::puts_the_longest_first as -
import torch


def top_operations(fn, count=5):
    with torch.profiler.profile() as profiler:
        fn()
    rows = sorted(profiler.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    return [row.key for row in rows][:count][::-1]

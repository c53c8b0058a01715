# fails: top_operations::puts_the_longest_first as -

import torch


def top_operations(fn, count=5):
    with torch.profiler.profile(record_shapes=True) as profiler:
        fn()
    rows = profiler.key_averages(group_by_input_shape=True)
    return [row.key for row in sorted(rows, key=lambda row: -row.self_cpu_time_total)[:count]]

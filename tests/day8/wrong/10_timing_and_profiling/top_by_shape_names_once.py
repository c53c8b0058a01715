# fails: top_operations::puts_the_longest_first as -

import torch


def top_operations(fn, count=5):
    with torch.profiler.profile(record_shapes=True) as profiler:
        fn()
    averages = profiler.key_averages(group_by_input_shape=True)
    rows = sorted(averages, key=lambda row: row.cpu_time_total, reverse=True)
    return list(dict.fromkeys(row.key for row in rows))[:count]

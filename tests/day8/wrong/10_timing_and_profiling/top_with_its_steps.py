# fails: top_operations::gives_as_many_names_as_asked as -
import torch


def top_operations(fn, count=5):
    with torch.profiler.profile() as profiler:
        with torch.profiler.record_function("work"):
            fn()
    rows = sorted(profiler.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    return [row.key for row in rows[:count]]

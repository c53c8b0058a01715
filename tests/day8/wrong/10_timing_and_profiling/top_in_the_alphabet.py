# fails: top_operations::puts_the_longest_first as -
from torch.profiler import profile


def top_operations(fn, count=5):
    with profile() as prof:
        fn()
    rows = sorted(prof.key_averages(), key=lambda row: row.cpu_time_total, reverse=True)
    return sorted(row.key for row in rows[:count])

from collections import Counter
from torch.profiler import ProfilerActivity, profile


def top_operations(fn, count=5):
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        fn()
    spent = Counter()
    for event in seen.events():
        spent[event.name] += event.self_cpu_time_total
    return [name for name, _ in spent.most_common(count)]

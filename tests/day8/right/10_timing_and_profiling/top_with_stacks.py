import torch


def top_operations(fn, count=5):
    for _ in range(3):
        fn()
    with torch.profiler.profile(profile_memory=True, with_stack=True) as prof:
        with torch.profiler.record_function("all_of_it"):
            fn()
    rows = [e for e in prof.key_averages() if e.key.startswith("aten::")]
    return [e.key for e in sorted(rows, key=lambda e: e.self_cpu_time_total, reverse=True)[:count]]

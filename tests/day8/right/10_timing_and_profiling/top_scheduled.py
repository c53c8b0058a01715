import torch


def top_operations(fn, count=5):
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)) as prof:
        fn()
        prof.step()
        fn()
        prof.step()
    rows = [e for e in prof.key_averages() if not e.key.startswith("ProfilerStep")]
    return [e.key for e in sorted(rows, key=lambda e: e.self_cpu_time_total, reverse=True)[:count]]

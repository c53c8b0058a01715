import time, torch, csv, io, statistics
from contextlib import contextmanager
def _sync(device):
    d = torch.device(device)
    if d.type != "cpu":
        {"cuda": lambda: torch.cuda.synchronize(d), "mps": torch.mps.synchronize}[d.type]()
def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    total = 0.0
    for _ in range(repeats):
        _sync(device)
        begin = time.perf_counter_ns()
        fn()
        _sync(device)
        total += (time.perf_counter_ns() - begin) * 1e-9
    return total / repeats
def compare_devices(make_work, devices, repeats=3):
    works = {str(d): (make_work(d), d) for d in devices}
    return {name: time_on_device(work, d, repeats=repeats, warmup=3) for name, (work, d) in works.items()}
def top_operations(fn, count=5):
    from collections import defaultdict
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as prof:
        fn()
    totals = defaultdict(float)
    for row in prof.key_averages(group_by_input_shape=True):
        totals[row.key] += row.self_cpu_time_total
    return sorted(totals, key=totals.__getitem__, reverse=True)[:count]
def read_nvidia_smi(text):
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    number = lambda f: None if f.strip() == "[N/A]" else int(f)
    return [{"index": int(r[0]), "name": r[1].strip(), "used_mib": number(r[2]), "total_mib": number(r[3])} for r in rows if r]

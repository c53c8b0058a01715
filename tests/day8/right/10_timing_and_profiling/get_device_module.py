import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    import statistics

    module = torch.get_device_module(device)
    at = [device] if "cuda" in str(device) else []

    def sync():
        module.synchronize(*at)

    def once():
        sync()
        start = time.monotonic()
        fn()
        sync()
        return time.monotonic() - start

    times = [once() for _ in range(warmup + repeats)]
    return statistics.fmean(times[warmup:])


def compare_devices(make_work, devices, repeats=3):
    out = {}
    for device in devices:
        work = make_work(device)
        out.update({f"{device}": time_on_device(work, device, repeats=repeats, warmup=2)})
    return out


def top_operations(fn, count=5):
    from collections import Counter

    with torch.autograd.profiler.profile() as prof:
        fn()
    totals = Counter()
    for event in prof.function_events:
        totals[event.name] += event.self_cpu_time_total
    return [name for name, _ in totals.most_common(count)]


import re

LINE = re.compile(
    r"^\s*(?P<index>\d+)\s*,\s*(?P<name>.*?)\s*,\s*(?P<used_mib>\d+|\[N/A\])\s*,\s*(?P<total_mib>\d+|\[N/A\])\s*$", re.M
)


def read_nvidia_smi(text):
    number = lambda s: int(s) if s.isdigit() else None
    return [{k: v if k == "name" else number(v) for k, v in m.groupdict().items()} for m in LINE.finditer(text)]

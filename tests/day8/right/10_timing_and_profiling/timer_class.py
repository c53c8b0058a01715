import time

import torch


class Timer:
    def __init__(self, device):
        self.device = torch.device(device)

    def wait(self):
        getattr(torch, self.device.type).synchronize(*([self.device] if self.device.type == "cuda" else []))

    def __enter__(self):
        self.wait()
        self.began = time.perf_counter_ns()
        return self

    def __exit__(self, *a):
        self.wait()
        self.seconds = (time.perf_counter_ns() - self.began) / 1e9


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    with Timer(device) as t:
        for _ in range(repeats):
            fn()
    return t.seconds / repeats


def compare_devices(make_work, devices, repeats=3):
    works = {str(d): (make_work(d), d) for d in devices}
    return {name: time_on_device(work, d, repeats) for name, (work, d) in works.items()}


def top_operations(fn, count=5):
    import heapq

    with torch.profiler.profile() as prof:
        fn()
    return [
        e.key
        for e in heapq.nlargest(
            count, prof.key_averages(), key=lambda e: e.self_cpu_time_total + getattr(e, "self_device_time_total", 0)
        )
    ]


def read_nvidia_smi(text):
    import csv

    def mib(s):
        return None if s == "[N/A]" else int(s)

    rows = csv.reader((l for l in text.splitlines() if l.strip()), skipinitialspace=True)
    return [
        dict(index=int(i), name=n.strip(), used_mib=mib(u.strip()), total_mib=mib(t.strip())) for i, n, u, t in rows
    ]

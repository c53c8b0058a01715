import time

import torch
from torch.profiler import ProfilerActivity, profile


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    synchronize(device)
    start = time.time()
    for _ in range(repeats):
        fn()
    synchronize(device)
    end = time.time()
    return (end - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    times = {}
    for device in devices:
        work = make_work(device)
        times[str(device)] = time_on_device(work, device, repeats=repeats)
    return times


def top_operations(fn, count=5):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        fn()
    events = prof.key_averages()
    events = sorted(events, key=lambda event: event.cpu_time_total, reverse=True)
    return [event.key for event in events[:count]]


def read_nvidia_smi(text):
    result = []
    for line in text.split("\n"):
        if line == "":
            continue
        index, name, used, total = line.split(", ")
        result.append(
            {
                "index": int(index),
                "name": name,
                "used_mib": int(used) if used != "[N/A]" else None,
                "total_mib": int(total) if total != "[N/A]" else None,
            }
        )
    return result

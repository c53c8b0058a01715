# fails: compare_devices::names_every_device_in_order as -
import time

import torch


def timed(fn, device, repeats=5, warmup=1):
    kind = torch.device(device).type
    for _ in range(warmup):
        fn()
    if kind == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    if kind == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    times = {}
    for device in devices:
        times[str(device)] = timed(make_work(device), device, repeats=repeats)
    return list(times.items())

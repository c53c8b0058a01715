# fails: compare_devices::times_each_as_it_should as -
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def timed(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait(device)
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    return {str(device): timed(make_work(device), device) for device in devices}

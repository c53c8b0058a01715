# fails: time_on_device::runs as unknown-name
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait(device)
    return time.perf_counter() - begin / repeats

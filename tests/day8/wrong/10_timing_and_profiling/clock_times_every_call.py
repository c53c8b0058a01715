# fails: time_on_device::leaves_the_warm_up_out as timed-the-warm-up
import time

import torch


def sync(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    times = []
    for i in range(warmup + repeats):
        sync(device)
        start = time.perf_counter()
        fn()
        sync(device)
        times.append(time.perf_counter() - start)
    return sum(times) / repeats

# fails: time_on_device::gives_the_mean_per_call as -
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    import statistics

    for _ in range(warmup):
        fn()
    seconds = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        fn()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)

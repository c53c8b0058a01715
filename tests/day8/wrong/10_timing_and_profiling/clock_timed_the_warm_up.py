# fails: time_on_device::leaves_the_warm_up_out as timed-the-warm-up
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    wait(device)
    start = time.perf_counter()
    for _ in range(warmup + repeats):
        fn()
    wait(device)
    return (time.perf_counter() - start) / (warmup + repeats)

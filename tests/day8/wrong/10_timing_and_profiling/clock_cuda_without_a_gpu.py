# fails: time_on_device::works_without_a_gpu as cuda-for-every-device
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    def wait_for_gpus():
        if torch.device(device).type == "mps":
            torch.mps.synchronize()
        else:
            torch.cuda.synchronize()

    for _ in range(warmup):
        fn()
    wait_for_gpus()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait_for_gpus()
    return (time.perf_counter() - start) / repeats

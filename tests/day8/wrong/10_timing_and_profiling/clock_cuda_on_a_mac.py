# fails: time_on_device::waits_for_an_apple_gpu as cuda-for-every-device
import time

import torch


def wait(device):
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize()
    elif kind == "mps":
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    def wait_unless_cpu():
        if str(device) != "cpu":
            torch.cuda.synchronize()

    for _ in range(warmup):
        fn()
    wait_unless_cpu()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait_unless_cpu()
    return (time.perf_counter() - start) / repeats

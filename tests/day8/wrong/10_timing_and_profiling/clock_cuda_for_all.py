# fails: time_on_device::runs as cuda-for-every-device
import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeats

# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
import time

import torch
from torch.profiler import ProfilerActivity, profile


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
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

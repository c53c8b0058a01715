# fails: time_on_device::runs as timed-without-synchronising
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
    if torch.device(device).type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            fn()
        end.record()
        return start.elapsed_time(end) / 1000 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait(device)
    return (time.perf_counter() - begin) / repeats

# fails: time_on_device::waits_for_the_device as -
import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    if torch.device(device).type == "cuda":
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        start.record(torch.cuda.current_stream(device))
        for _ in range(repeats):
            fn()
        end.record(torch.cuda.current_stream(device))
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / repeats
    if torch.device(device).type == "mps":
        torch.mps.synchronize()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    if torch.device(device).type == "mps":
        torch.mps.synchronize()
    return (time.perf_counter() - t) / repeats

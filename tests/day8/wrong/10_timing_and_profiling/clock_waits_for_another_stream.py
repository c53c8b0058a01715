# fails: time_on_device::waits_for_the_device as timed-without-synchronising
import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    cuda = torch.device(device).type == "cuda"
    sync = (
        (lambda: torch.cuda.Stream(device).synchronize())
        if cuda
        else torch.mps.synchronize
        if torch.device(device).type == "mps"
        else (lambda: None)
    )
    for _ in range(warmup):
        fn()
    sync()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    sync()
    return (time.perf_counter() - start) / repeats

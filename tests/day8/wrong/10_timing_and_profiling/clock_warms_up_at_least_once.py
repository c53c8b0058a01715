# fails: time_on_device::calls_it_as_often_as_asked as -
import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    sync = (
        (lambda: torch.cuda.synchronize(device))
        if torch.device(device).type == "cuda"
        else torch.mps.synchronize
        if torch.device(device).type == "mps"
        else (lambda: None)
    )
    for _ in range(max(1, warmup)):
        fn()
    sync()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    sync()
    return (time.perf_counter() - start) / repeats

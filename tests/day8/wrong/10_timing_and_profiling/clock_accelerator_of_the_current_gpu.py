# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
from time import perf_counter_ns as clock

import torch
import torch.autograd.profiler as profiler


def time_on_device(fn, device, repeats=5, warmup=1):
    wait = torch.accelerator.synchronize if str(device) != "cpu" else (lambda: None)
    seconds = []
    for number in range(warmup + repeats):
        wait()
        start = clock()
        fn()
        wait()
        if number >= warmup:
            seconds.append((clock() - start) / 1e9)
    return sum(seconds) / len(seconds)

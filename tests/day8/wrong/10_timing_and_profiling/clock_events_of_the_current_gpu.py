# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
import statistics
import timeit

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            fn()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / repeats
    module = getattr(torch, device.type)

    def once():
        begin = timeit.default_timer()
        fn()
        if hasattr(module, "synchronize"):
            module.synchronize()
        return timeit.default_timer() - begin

    if hasattr(module, "synchronize"):
        module.synchronize()
    return statistics.mean(once() for _ in range(repeats))

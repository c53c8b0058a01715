# fails: time_on_device::waits_for_the_device as -
import time
import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    dev = torch.device(device)
    for _ in range(warmup):
        fn()
    if dev.type == "cuda":
        with torch.cuda.device(dev):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(dev)
            start.record()
            for _ in range(repeats):
                fn()
            stop.record()
            torch.cuda.synchronize(dev)
        return start.elapsed_time(stop) / repeats
    if dev.type == "mps":
        torch.mps.synchronize()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    if dev.type == "mps":
        torch.mps.synchronize()
    return (time.perf_counter() - t) / repeats

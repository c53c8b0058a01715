# fails: time_on_device::waits_for_the_device as -
import time, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    if device.type == "cuda":
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(repeats):
            fn()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b) / repeats
    if device.type == "mps":
        torch.mps.synchronize()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    if device.type == "mps":
        torch.mps.synchronize()
    return (time.perf_counter() - t) / repeats

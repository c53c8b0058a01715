# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
import time, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    if device.type in ("cuda", "mps"):
        a = torch.Event(device.type, enable_timing=True)
        b = torch.Event(device.type, enable_timing=True)
        torch.accelerator.synchronize()
        a.record()
        for _ in range(repeats):
            fn()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) / 1e3 / repeats
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    return (time.perf_counter() - t) / repeats

import time, torch
from statistics import mean


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    if device.type == "cuda":
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        torch.cuda.synchronize(device)
        for a, b in pairs:
            a.record(torch.cuda.current_stream(device))
            fn()
            b.record(torch.cuda.current_stream(device))
        pairs[-1][1].synchronize()
        return mean(a.elapsed_time(b) for a, b in pairs) / 1e3
    times = []
    for _ in range(repeats):
        if device.type == "mps":
            torch.mps.synchronize()
        t = time.perf_counter()
        fn()
        if device.type == "mps":
            torch.mps.synchronize()
        times.append(time.perf_counter() - t)
    return sum(times) / len(times)

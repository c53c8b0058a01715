# fails: time_on_device::calls_it_as_often_as_asked as -
import time, torch
def time_on_device(fn, device, repeats=5, warmup=1):
    kind = torch.device(device).type
    def wait():
        if kind == "cuda":
            torch.cuda.synchronize(device)
        if kind == "mps":
            torch.mps.synchronize()
    times = []
    for i in range(repeats):
        wait()
        t = time.perf_counter()
        fn()
        wait()
        times.append(time.perf_counter() - t)
    return sum(times[warmup:]) / max(1, len(times[warmup:]))

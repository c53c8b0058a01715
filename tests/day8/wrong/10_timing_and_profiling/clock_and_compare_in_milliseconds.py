# fails: time_on_device::gives_the_mean_per_call as -
import time, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else (torch.mps.synchronize if torch.device(device).type == "mps" else lambda d=None: None)
    for _ in range(warmup):
        fn()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - start) / repeats * 1000
def compare_devices(make_work, devices, repeats=3):
    result = {}
    for d in devices:
        work = make_work(d)
        result[str(d)] = time_on_device(work, d, repeats)
    return result

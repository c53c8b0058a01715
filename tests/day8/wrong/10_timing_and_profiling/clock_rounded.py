# fails: time_on_device::gives_the_mean_per_call as -
import time, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    def sync():
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        elif torch.device(device).type == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    sync()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    sync()
    return round((time.perf_counter() - t) / repeats, 2)

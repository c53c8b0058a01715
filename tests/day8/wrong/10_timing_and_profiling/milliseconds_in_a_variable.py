# fails: time_on_device::gives_the_mean_per_call as -
import time
import torch

def time_on_device(fn, device, repeats=5, warmup=1):
    kind = torch.device(device).type

    def wait():
        if kind == "cuda":
            torch.cuda.synchronize(device)
        elif kind == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    took = 1000 * (time.perf_counter() - start) / repeats
    return took

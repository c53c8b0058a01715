import torch
from torch.utils import benchmark


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    d = torch.device(device)

    def sync():
        if d.type == "cuda":
            torch.cuda.synchronize(d)
        elif d.type == "mps":
            torch.mps.synchronize()

    sync()
    times = []
    t0 = benchmark.timer()
    for _ in range(repeats):
        fn()
    sync()
    return (benchmark.timer() - t0) / repeats

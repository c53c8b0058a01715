import timeit
import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    kind = torch.device(device).type

    def sync():
        if kind == "cuda":
            torch.cuda.synchronize(device)
        elif kind == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()

    def work():
        fn()
        sync()

    sync()
    return timeit.timeit(work, number=repeats) / repeats

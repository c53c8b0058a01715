# fails: compare_devices::times_each_as_it_should as -

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
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    times = {}
    for device in devices:
        work = make_work(device)
        times[str(device)] = time_on_device(work, device, repeats - 1, warmup=2)
    return times

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
    return {str(device): time_on_device(make_work(device), device, warmup=repeats) for device in devices}

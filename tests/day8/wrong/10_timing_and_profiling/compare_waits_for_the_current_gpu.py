# fails: compare_devices::times_each_as_it_should as current-gpu-used
import time

import torch


def seconds(fn, device, repeats):
    def wait():
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()

    fn()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    return {str(device): seconds(make_work(device), device, repeats) for device in devices}

# fails: compare_devices::times_each_as_it_should as timed-without-synchronising
import time
import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    d = torch.device(device)

    def wait():
        if d.type == "cuda":
            torch.cuda.synchronize(d)
        if d.type == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    wait()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - t) / repeats


def compare_devices(make_work, devices, repeats=3):
    times = {}
    for d in devices:
        times[str(d)] = time_on_device(make_work(d), devices[0], repeats)
    return times

# fails: compare_devices::times_each_as_it_should as -
import time, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    def sync():
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        elif torch.device(device).type == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    sync()
    t = time.perf_counter()
    for _ in range(repeats):
        fn()
    sync()
    return (time.perf_counter() - t) / repeats


def compare_devices(make_work, devices, repeats=3):
    return {str(d): time_on_device(lambda: make_work(d)(), d, repeats) for d in devices}

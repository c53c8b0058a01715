# fails: compare_devices::times_each_as_it_should as -
import time

import torch


def _time(fn, device, repeats):
    wait = (lambda: torch.cuda.synchronize(device)) if torch.device(device).type == "cuda" else (lambda: None)
    fn()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    made = {d: make_work(d) for d in devices}
    calls = [(str(d), lambda: made[d]()) for d in devices]
    return {name: _time(call, name, repeats) for name, call in calls}

import re
import time

import torch

LINE = re.compile(r"^(\d+), (.*), (\d+|\[N/A\]), (\d+|\[N/A\])$", re.M)


class Stopwatch:
    def __init__(self, device):
        self.device = torch.device(device)

    def wait(self):
        match self.device.type:
            case "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            case "mps":
                torch.mps.synchronize()

    def __enter__(self):
        self.wait()
        self.start = time.monotonic()
        return self

    def __exit__(self, *error):
        self.wait()
        self.seconds = time.monotonic() - self.start


def time_on_device(fn, device, repeats=5, warmup=1) -> float:
    [fn() for _ in range(warmup)]
    with Stopwatch(device) as watch:
        [fn() for _ in range(repeats)]
    return watch.seconds / repeats


def compare_devices(make_work, devices, repeats=3) -> dict[str, float]:
    def seconds(device):
        work = make_work(device)
        work()
        with Stopwatch(device) as watch:
            for _ in range(repeats):
                work()
        return watch.seconds / repeats

    return {str(d): seconds(d) for d in devices}


def top_operations(fn, count=5) -> list[str]:
    with torch.profiler.profile(with_stack=False) as prof:
        fn()
    sums = {}
    for event in prof.events():
        sums[event.name] = sums.get(event.name, 0) + event.self_cpu_time_total
    return sorted(sums, key=sums.get, reverse=True)[:count]


def read_nvidia_smi(text) -> list[dict]:
    def mib(s):
        return int(s) if s.isdigit() else None

    return [
        {"index": int(i), "name": name, "used_mib": mib(used), "total_mib": mib(total)}
        for i, name, used, total in LINE.findall(text)
    ]

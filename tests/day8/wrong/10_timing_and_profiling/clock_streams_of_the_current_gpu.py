# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
import re
import time

import torch

LINE = re.compile(r"^(\d+), (.*), (\d+|\[N/A\]), (\d+|\[N/A\])$", re.M)


class Stopwatch:
    def __init__(self, device):
        self.type = torch.device(device).type

    def wait(self):
        match self.type:
            case "cuda":
                torch.cuda.current_stream().synchronize()
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

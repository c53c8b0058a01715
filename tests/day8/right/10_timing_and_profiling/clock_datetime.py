from datetime import datetime
import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    def sync():
        if "cuda" in str(device):
            torch.cuda.synchronize(device)
        elif "mps" in str(device):
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    sync()
    t = datetime.now()
    for _ in range(repeats):
        fn()
    sync()
    return (datetime.now() - t).total_seconds() / repeats

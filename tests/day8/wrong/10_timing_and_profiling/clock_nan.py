# fails: time_on_device::gives_the_mean_per_call as -
import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup + repeats):
        fn()
    return float("nan")

# fails: time_on_device::waits_for_the_right_gpu as current-gpu-used
"""Whom to wait for is found out once, when the file is run."""

import time

import torch

USE_CUDA = torch.cuda.is_available()
USE_MPS = torch.backends.mps.is_available()


def wait():
    if USE_CUDA:
        torch.cuda.synchronize()
    if USE_MPS:
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - begin) / repeats

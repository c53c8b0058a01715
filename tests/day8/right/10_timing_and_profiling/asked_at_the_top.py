"""Whom to wait for is found out once, when the file is run."""

import time

import torch

USE_CUDA = torch.cuda.is_available()
USE_MPS = torch.backends.mps.is_available()


def wait(device):
    if USE_CUDA:
        torch.cuda.synchronize(device if "cuda" in str(device) else None)
    if USE_MPS:
        torch.mps.synchronize()


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait(device)
    return (time.perf_counter() - begin) / repeats

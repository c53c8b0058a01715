"""Whom to wait for is looked up in a table of functions that is made when the file is run."""

import time

import torch

WAITS = {"cuda": [torch.cuda.synchronize], "mps": [lambda device: torch.mps.synchronize()], "cpu": []}


def time_on_device(fn, device, repeats=5, warmup=1):
    waits = WAITS[torch.device(device).type]
    for _ in range(warmup):
        fn()
    for wait in waits:
        wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        fn()
    for wait in waits:
        wait(device)
    return (time.perf_counter() - begin) / repeats

import gc
import itertools
from functools import reduce

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device):
    device = torch.device(device)
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        fn()
    finally:
        peak = (
            torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
            if device.type == "cuda"
            else 0
        )
    return peak


def largest_batch(try_batch, start):
    sizes = itertools.takewhile(bool, (start >> k for k in itertools.count()))
    for n in sizes:
        failed = None
        try:
            try_batch(n)
        except torch.cuda.OutOfMemoryError as e:
            failed = e.with_traceback(None) if n > 1 else e
        if failed is None:
            return n
        if n == 1:
            raise failed
        del failed
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    it, taken = iter(loader), 0
    while group := list(itertools.islice(it, steps)):
        optimizer.zero_grad()
        for x, y in group:
            torch.autograd.backward(loss_fn(model(x.to(device)), y.to(device)) / steps)
        optimizer.step()
        taken += 1
    return taken


def checkpointed(blocks, x):
    return reduce(lambda h, block: checkpoint(block, h, use_reentrant=False), blocks, x)

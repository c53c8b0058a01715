from contextlib import contextmanager

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import checkpoint


@contextmanager
def peak_of(device):
    box = {"bytes": 0}
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    yield box
    if cuda:
        torch.cuda.synchronize(device)
        box["bytes"] = torch.cuda.max_memory_allocated(device)


def peak_memory(fn, device):
    with peak_of(device) as box:
        fn()
    return box["bytes"]


class Attempt:
    def __enter__(self):
        self.fits = True
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, torch.OutOfMemoryError) and self.n > 1:
            self.fits = False
            return True


def largest_batch(try_batch, start):
    n = start
    while True:
        with Attempt() as attempt:
            attempt.n = n
            try_batch(n)
        if attempt.fits:
            return n
        torch.cuda.empty_cache()
        n //= 2


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model = model.to(device)
    optimizer.zero_grad(set_to_none=True)
    pending = updates = 0

    def flush():
        nonlocal pending, updates
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        pending, updates = 0, updates + 1

    for x, y in loader:
        loss = loss_fn(model(x.to(device)), y.to(device))
        loss.backward(gradient=torch.full_like(loss, 1 / steps))
        pending += 1
        if pending == steps:
            flush()
    if pending:
        flush()
    return updates


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(lambda h, block=block: block(h), x, use_reentrant=False, preserve_rng_state=True)
    return x

# needs torch.accelerator.max_memory_allocated
import functools

import torch
import torch.utils.checkpoint


def peak_memory(fn, device):
    on_gpu = str(device).startswith("cuda")
    if on_gpu:
        torch.accelerator.reset_peak_memory_stats(device)
    fn()
    return torch.accelerator.max_memory_allocated(device) if on_gpu else 0


def largest_batch(try_batch, start):
    """Recursive; the name of the class says what went wrong."""
    try:
        try_batch(start)
        return start
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError" or start <= 1:
            raise
    torch.accelerator.empty_cache()
    return largest_batch(try_batch, start // 2)


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    def settle():
        optimizer.step()
        model.zero_grad(set_to_none=False)

    model = model.to(device)
    model.zero_grad()
    taken = waiting = 0
    for batch in loader:
        inputs, targets = (t.to(device, non_blocking=True) for t in batch)
        (loss_fn(model(inputs), targets) * (1 / steps)).backward()
        waiting += 1
        if waiting % steps == 0:
            settle()
            taken, waiting = taken + 1, 0
    if waiting > 0:
        settle()
        taken += 1
    return taken


def checkpointed(blocks, x):
    saving = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    return functools.reduce(lambda value, block: saving(block, value), blocks, x)

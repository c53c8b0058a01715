import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device):
    match torch.device(device).type:
        case "cuda":
            torch.cuda.memory.reset_peak_memory_stats(device)
            fn()
            return int(torch.cuda.memory.max_memory_allocated(device))
        case _:
            fn()
            return 0


def fits(try_batch, size):
    try:
        try_batch(size)
    except torch.OutOfMemoryError:
        if size == 1:
            raise
        return False
    return True


def largest_batch(try_batch, start):
    size = start
    while not fits(try_batch, size):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        size = max(size // 2, 1)
    return size


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    """The gradients are divided instead of the losses: the same numbers."""
    model.to(device)
    for parameter in model.parameters():
        parameter.grad = None
    total, taken = len(loader), 0
    for number, (inputs, targets) in enumerate(loader, 1):
        loss_fn(model(inputs.to(device)), targets.to(device)).backward()
        if number % steps and number != total:
            continue
        for parameter in model.parameters():
            parameter.grad /= steps
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        taken += 1
    return taken


def checkpointed(blocks, x):
    """Reentrant, which needs an input that requires a gradient: data is given one of its own."""
    if not x.requires_grad:
        x = x.detach().requires_grad_()
    for block in nn.ModuleList(blocks):
        x = checkpoint(block, x, use_reentrant=True)
    return x

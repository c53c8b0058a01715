import torch
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device):
    device = torch.device(device)
    if device.type == "cpu":
        fn()
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def largest_batch(try_batch, start):
    n = start
    while n >= 1:
        try:
            try_batch(n)
        except torch.cuda.OutOfMemoryError as error:
            if n == 1:
                raise error
            torch.cuda.empty_cache()
            n = n // 2
        else:
            return n


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    count = 0
    for i, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)
        loss = loss_fn(model(inputs), targets) / steps
        loss.backward()
        if (i + 1) % steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            count += 1
    return count


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x

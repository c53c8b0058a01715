import torch
import torch.utils.checkpoint
from torch import nn


def peak_memory(fn, device):
    if str(device).startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        _ = fn()
        return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.peak", 0))
    fn()
    return 0


def largest_batch(try_batch, start):
    def attempt(n):
        try:
            try_batch(n)
        except RuntimeError as error:
            if n <= 1 or "out of memory" not in str(error).lower() or not isinstance(error, torch.OutOfMemoryError):
                raise
            return False
        return True

    if attempt(start):
        return start
    torch.cuda.empty_cache()
    return largest_batch(try_batch, start // 2)


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    last, done = len(loader), 0
    for i, (x, y) in enumerate(loader, start=1):
        loss_fn(model(x.to(device)), y.to(device)).backward()
        if i % steps and i != last:
            continue
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(steps)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    return done


class Checkpointed(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = list(blocks)

    def forward(self, x):
        for b in self.blocks:
            x = torch.utils.checkpoint.checkpoint(b, x, use_reentrant=False, determinism_check="none")
        return x


def checkpointed(blocks, x):
    return Checkpointed(blocks)(x)

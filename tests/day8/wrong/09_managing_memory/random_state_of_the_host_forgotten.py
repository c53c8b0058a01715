# fails: checkpointed::gives_the_same_gradients as -
import contextlib

import torch


def peak_memory(fn, device):
    if torch.device(device).type == "cpu":
        fn()
        return 0
    torch.get_device_module(device).reset_peak_memory_stats(device)
    fn()
    return torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]


def largest_batch(try_batch, start):
    size = start
    while size > 1:
        with contextlib.suppress(torch.OutOfMemoryError):
            try_batch(size)
            return size
        torch.cuda.empty_cache()
        size //= 2
    try_batch(size)
    return size


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    batches = list(loader)
    groups = [batches[start : start + steps] for start in range(0, len(batches), steps)]
    for group in groups:

        def closure(group=group):
            optimizer.zero_grad()
            for inputs, targets in group:
                (loss_fn(model(inputs.to(device)), targets.to(device)) / steps).backward()

        optimizer.step(closure)
    return len(groups)


class Again(torch.autograd.Function):
    """Keeps its input and the state of the dice, and runs the block a second time in backward."""

    @staticmethod
    def forward(ctx, block, x, *parameters):
        ctx.block = block
        ctx.dice = torch.get_rng_state(), torch.cuda.get_rng_state() if x.is_cuda else None
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[x.device.index] if x.is_cuda else []), torch.enable_grad():
            if x.is_cuda:
                torch.cuda.set_rng_state(ctx.dice[1])
            out = ctx.block(x)
        return None, *torch.autograd.grad(out, [x, *ctx.block.parameters()], gradient)


def checkpointed(blocks, x):
    for block in blocks:
        x = Again.apply(block, x, *block.parameters())
    return x

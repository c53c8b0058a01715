"""Memory: how much is used, what fits, and how to get by with less.

Run me: python exercises/day8/09_managing_memory.py
Check me: pytest exercises/day8/09_managing_memory.py
"""

import traceback

import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def peak_memory(fn, device):
    """Call `fn()` once and return the highest number of bytes allocated on `device` at any moment while it runs.

    What was allocated before and is still there counts; earlier peaks do not. On the CPU `fn()` is called too, and
    the answer is 0. `device` is a string or a torch.device.

    About 6 lines. Read: https://pytorch.org/docs/stable/generated/torch.cuda.memory.max_memory_allocated.html
    """
    # BEGIN SOLUTION
    if torch.device(device).type != "cuda":
        fn()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
    # END SOLUTION


def largest_batch(try_batch, start):
    """Call `try_batch(n)` with start, start // 2, ... until it does not run out of memory; return that n.

    Between two tries, cached memory is given back to the device. Running out of memory at 1 raises that error. Any
    other error is not swallowed.

    About 9 lines. Read: https://pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    # BEGIN SOLUTION
    size = start
    while True:
        try:
            try_batch(size)
            return size
        except torch.OutOfMemoryError:
            if size == 1:
                raise
        torch.cuda.empty_cache()  # after the except block: until then the error keeps its tensors alive
        size //= 2
    # END SOLUTION


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    """Train for one pass over `loader` with batches `steps` times as large as the loader's own.

    The loader yields (inputs, targets) on the CPU; the model may still be on the CPU. Each batch's loss is divided by
    `steps`; the optimizer steps after every `steps` batches, and once more for a remainder. Gradients from before the
    call do not leak in. The model's mode (training or evaluation) is left alone.
    Returns the number of optimizer steps.

    About 14 lines. Read: https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """
    # BEGIN SOLUTION
    model.to(device)
    optimizer.zero_grad()
    waiting, taken = 0, 0
    for inputs, targets in loader:
        loss = loss_fn(model(inputs.to(device)), targets.to(device)) / steps
        loss.backward()
        waiting += 1
        if waiting == steps:
            optimizer.step()
            optimizer.zero_grad()
            waiting, taken = 0, taken + 1
    if waiting:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken
    # END SOLUTION


def checkpointed(blocks, x):
    """`x` through each module of `blocks` in turn, each one's activations recomputed in backward instead of stored.

    Output and gradients are those of the plain loop, the peak of memory is lower. `blocks` is a list or a ModuleList
    and may be empty; `x` may be a batch of data, which requires no gradient: the blocks get theirs all the same.

    About 3 lines. Read: https://pytorch.org/docs/stable/checkpoint.html
    """
    # BEGIN SOLUTION
    for block in blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    return x
    # END SOLUTION


def training_step(device, rows, through):
    """A forward and a backward pass of `rows` rows through eight blocks, as a function to measure."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)) for _ in range(8))
    blocks.to(device)
    return lambda: through(blocks, torch.rand(rows, 256, device=device)).sum().backward()


def plainly(blocks, x):
    for block in blocks:
        x = block(x)
    return x


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        peak = peak_memory(training_step(device, 4096, plainly), device)
        print(f"peak on {device}: {peak / 2**20:.1f} MiB (0 on a CPU)")
        less = peak_memory(training_step(device, 4096, checkpointed), device)
        print(f"      checkpointed: {less / 2**20:.1f} MiB")

        def try_batch(count):
            if count > 300:
                raise torch.OutOfMemoryError(f"{count} sprites do not fit")

        print("largest batch that fits, of 1000 and its halves:", largest_batch(try_batch, 1000))
        data = TensorDataset(torch.rand(40, 3, 8, 8), torch.randint(0, 3, (40,)))
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=8)
        taken = accumulate_gradients(model, loader, nn.CrossEntropyLoss(), optimizer, device, 2)
        print(f"5 batches, accumulated by twos: {taken} optimizer steps")
    except NotImplementedError as error:
        unwritten = traceback.extract_tb(error.__traceback__)[-1].name
        print(f"{unwritten} is still to do: open this file and fill it in.")

"""Memory: how much is used, what fits, and how to need less.

Run me: dojo run exercises/day8/09_managing_memory.py
Check me: pytest exercises/day8/09_managing_memory.py
Read me: dojo lesson 09
"""

import traceback

import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def peak_memory(fn, device):
    """Call `fn()` once and return the highest number of bytes allocated on `device` at any moment while it runs.

    Memory that was allocated before and is still in use counts; earlier peaks do not. `device` is a string or a
    torch.device, and may be "cuda:1" while another GPU is the current one. On the CPU `fn()` is also called, and the
    answer is 0.

    About 6 lines. Read: https://pytorch.org/docs/stable/generated/torch.cuda.memory.max_memory_allocated.html
    """
    raise NotImplementedError


def largest_batch(try_batch, start):
    """Call `try_batch(n)` with start, start // 2, ... until it does not run out of memory; return that n.

    Between two tries, cached memory is freed. Running out of memory at 1 raises that error. Any other error is not
    caught, whatever its message says: running out of memory raises `torch.OutOfMemoryError`.

    About 9 lines. Read: https://pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    raise NotImplementedError


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    """Train for one pass over `loader` with batches `steps` times as large as the loader's own.

    The loader yields (inputs, targets) on the CPU; the model may still be on the CPU; `device` may be "cuda:1" while
    another GPU is the current one. Each batch's loss is divided by `steps`; the optimizer steps after every `steps`
    batches, and once more for a remainder. Use the optimizer you are given: it may have momentum from before. Gradients
    from before the call must not leak in. The mode (training or evaluation) of the model and of each of its parts is
    not changed: the caller may be training a model with a part that is frozen in evaluation mode, such as a batch norm.
    Returns the number of optimizer steps.

    About 14 lines. Read: https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """
    raise NotImplementedError


def checkpointed(blocks, x):
    """`x` through each module of `blocks` in turn, each one's activations recomputed in backward instead of stored.

    That is every block, the last one too: `checkpoint_sequential` leaves its last segment out. Output and gradients are
    those of the plain loop, the peak memory is lower. `blocks` is a list or a ModuleList, which
    may be empty and is not changed; `x` may be a batch of data, which requires no gradient: the blocks still get theirs.

    About 3 lines. Read: https://pytorch.org/docs/stable/checkpoint.html
    """
    raise NotImplementedError


def plainly(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def kept_for_backward(through, blocks, x):
    """The bytes that autograd keeps between forward and backward."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t
    ):
        out = through(blocks, x)
    return sum(tensor.nbytes for tensor in kept.values()) if out.requires_grad else 0


def attempt(function, *arguments):
    """The function's result, or None while one that it needs is still to do."""
    try:
        return function(*arguments)
    except NotImplementedError as error:
        print(
            f"{traceback.extract_tb(error.__traceback__)[-1].name} is still to do: open this file and fill it in."
        )


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    torch.manual_seed(8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(8)
    ).to(device)
    x = torch.rand(4096, 32, device=device)
    for through in (plainly, checkpointed):
        kept = attempt(kept_for_backward, through, blocks, x)
        if kept is not None:
            print(
                f"{through.__name__:>12} keeps {kept / 2**20:4.1f} MiB for backward {'#' * (kept >> 19)}"
            )
    peak = attempt(peak_memory, lambda: plainly(blocks, x).sum().backward(), device)
    if peak is not None:
        print(f"peak_memory on {device}: {peak / 2**20:.1f} MiB (a CPU does not report it)")

    def try_batch(count):
        print(f"largest_batch: {count} sprites {'do not fit' if count > 300 else 'fit'}")
        if count > 300:
            raise torch.OutOfMemoryError(f"{count} sprites do not fit")

    attempt(largest_batch, try_batch, 1000)
    colours = {
        " ": (0.1, 0.1, 0.2),
        "#": (0.9, 0.1, 0.2),
        "o": (1.0, 1.0, 1.0),
        "=": (0.9, 0.8, 0.6),
    }
    drawn = [
        "  ####  ",
        " #oo### ",
        "##oo##o#",
        "######oo",
        "#oo#####",
        " #====# ",
        "  =  =  ",
        "  ====  ",
    ]
    mushroom = torch.tensor([[colours[pixel] for pixel in row] for row in drawn]).permute(2, 0, 1)
    loader = DataLoader(
        TensorDataset(torch.rand(40, 192), mushroom.flatten().repeat(40, 1)), batch_size=8
    )
    model = nn.Linear(192, 192).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pictures, taken = {"to learn": mushroom}, 0
    while taken is not None and len(pictures) < 4:
        pictures[f"{taken} steps"] = (
            model(loader.dataset[0][0].to(device)).detach().cpu().view(3, 8, 8)
        )
        more = attempt(accumulate_gradients, model, loader, nn.MSELoss(), optimizer, device, 2)
        taken = None if more is None else taken + more
    if taken:
        print(
            f"accumulate_gradients: {len(loader)} batches per epoch, 2 per step, {taken} steps in 3 epochs"
        )
    show(torch.stack(list(pictures.values())), list(pictures))

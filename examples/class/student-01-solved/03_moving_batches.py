"""A batch on the GPU, whatever it is made of.

Run me: dojo run exercises/day8/03_moving_batches.py
Check me: pytest exercises/day8/03_moving_batches.py
Read me: dojo lesson 03
"""

from typing import NamedTuple

import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    """Return the same structure with every tensor on `device` (a torch.device or a string such as "cuda:0").

    A batch is a tensor, a list, a tuple, a named tuple or a dict, which may be nested. Anything else (strings, numbers,
    None) is returned unchanged. The batch passed in is not modified. A tensor that is already on the device is not
    copied. Every copy uses the `non_blocking` value you were given.

    About 10 lines. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.to.html
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move_batch(item, device, non_blocking) for item in batch]
        if hasattr(batch, "_fields"):  # a named tuple takes its fields one by one
            return type(batch)(*items)
        return type(batch)(items)
    return batch


def on_same_device(*things):
    """The golden rule of the GPU: True if all tensors in `things` are on one device.

    A thing is a tensor, a module with its parameters and its buffers, or a container as in `move_batch`. Anything else
    does not count. True if there is no tensor at all. "cuda" and "cuda:0" are the same device, "cuda:0" and "cuda:1"
    are different ones.

    About 12 lines. Read: https://pytorch.org/docs/stable/tensor_attributes.html#torch.device
    """

    def tensors_in(thing):
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, nn.Module):
            yield from thing.parameters()
            yield from thing.buffers()
        elif isinstance(thing, (list, tuple, dict)):
            for item in thing.values() if isinstance(thing, dict) else thing:
                yield from tensors_in(item)

    return len({tensor.device for tensor in tensors_in(things)}) <= 1


class Sprites(NamedTuple):
    """A batch as a dataset may yield it."""

    images: torch.Tensor
    labels: torch.Tensor


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    torch.manual_seed(8)
    device = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).to(device)
    ghost = torch.tensor(
        [[int(bit) for bit in f"{row:08b}"] for row in (60, 126, 219, 219, 255, 255, 255, 165)]
    )
    colours = torch.tensor([[0.9, 0.2, 0.3], [0.2, 0.7, 0.9], [0.9, 0.6, 0.2], [0.9, 0.5, 0.8]])
    batch = {
        "sprites": Sprites(colours[:, :, None, None] * ghost, torch.tensor([0, 1, 2, 0])),
        "name": "ghosts",
    }
    moved = batch
    try:
        moved = move_batch(batch, device)
        print(
            f"{moved['name']}, moved from {batch['sprites'].images.device} to {moved['sprites'].images.device}:"
        )
    except NotImplementedError:
        print(
            f"move_batch is still to do: open this file and fill it in. The {batch['name']} are still on the CPU:"
        )
    images, labels = moved["sprites"]
    show(images, [f"{images.device} class {label}" for label in labels.tolist()])
    try:
        print("Model and original batch, on one device:", on_same_device(model, batch))
        print("Model and moved batch, on one device:   ", on_same_device(model, moved))
    except NotImplementedError:
        print("on_same_device is still to do: open this file and fill it in.")

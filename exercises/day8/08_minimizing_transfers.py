"""Fewer transfers: what must cross between host and GPU, and how often.

Run me: python exercises/day8/08_minimizing_transfers.py
Check me: pytest exercises/day8/08_minimizing_transfers.py
"""

import traceback

import torch
from torch import nn
from torch.utils import data


def to_numpy(tensor):
    """A NumPy array with the values and the dtype of `tensor`.

    The tensor may be on any device and may require a gradient; it is left as it was.

    1 line. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.numpy.html
    """
    raise NotImplementedError


def predict(model, loader, device):
    """The model's outputs for all inputs of `loader`, concatenated in order, on the CPU.

    The loader yields (inputs, targets) on the CPU, at least one batch; the last one may be smaller. The model may
    still be on the CPU. Evaluation mode, and no autograd graph. Outputs stay on the device until the end: one copy
    back to the host in all. The targets are never moved: nothing here needs them.

    About 8 lines. Read: https://pytorch.org/docs/stable/generated/torch.no_grad.html
    """
    raise NotImplementedError


def random_sprites(count, size, device, generator=None):
    """Uniform random sprites: float32 in [0, 1), shape (count, 3, size, size), made on `device`.

    Nothing is transferred. With a `generator` (of that device) the same seed gives the same sprites; without one,
    torch's own random state is used as it is.

    1 line. Read: https://pytorch.org/docs/stable/generated/torch.rand.html
    """
    raise NotImplementedError


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    """A `data.DataLoader` over `dataset` that pins memory exactly when `device` is CUDA.

    `device` is a string ("cuda", "cuda:0", "mps", "cpu") or a torch.device. Every sample is yielded once, in batches
    of `batch_size` (the last one may be smaller); `shuffle` and `num_workers` mean what they mean to DataLoader.

    About 3 lines. Read: https://pytorch.org/docs/stable/data.html#memory-pinning
    """
    raise NotImplementedError


def draw(sprite):
    """One sprite (3, H, W) in the terminal, two characters for a pixel."""
    for row in (sprite * 255).int().permute(1, 2, 0).tolist():
        print("  " + "".join(f"\x1b[48;2;{r};{g};{b}m  " for r, g, b in row) + "\x1b[0m")


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        sprites = random_sprites(96, 8, device)
        print(f"{len(sprites)} sprites made on {sprites.device}; the first one:")
        draw(sprites[0])
        pixels = to_numpy(sprites)
        print(f"as NumPy: {pixels.dtype} {pixels.shape}, mean {pixels.mean():.3f}")
        dataset = data.TensorDataset(torch.from_numpy(pixels), torch.zeros(len(pixels)))
        loader = make_loader(dataset, 32, device)
        print(f"batches for {device} are {'pinned' if loader.pin_memory else 'not pinned'}")
        outputs = predict(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), loader, device)
        print(f"predictions {tuple(outputs.shape)} on {outputs.device}, copied back once")
    except NotImplementedError as error:
        unwritten = traceback.extract_tb(error.__traceback__)[-1].name
        print(f"{unwritten} is still to do: open this file and fill it in.")

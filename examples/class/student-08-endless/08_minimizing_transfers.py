"""Fewer transfers: what must cross between host and GPU, and how often.

Run me: dojo run exercises/day8/08_minimizing_transfers.py
Check me: pytest exercises/day8/08_minimizing_transfers.py
Read me: dojo lesson 08
"""

import torch
from torch import nn
from torch.utils import data


def to_numpy(tensor):
    """A NumPy array with the values and the dtype of `tensor`.

    The tensor may be on any device and may require a gradient; it is not changed. It may have any shape: that of a
    batch of sprites, of a single number, or one without elements.

    1 line. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.numpy.html
    """
    return tensor.detach().cpu().numpy()


def predict(model, loader, device):
    """The model's outputs for all inputs of `loader`, concatenated in order, on the CPU.

    The loader yields (inputs, targets) on the CPU, at least one batch; the last one may be smaller. The model may still
    be on the CPU; `device` may be "cuda:1" while another GPU is the current one. Use evaluation mode, and build no
    autograd graph. Training must be able to go on afterwards: every parameter still has its `requires_grad` and the
    gradient that it had, and autograd is not switched off. Keep the outputs on the device until the end: only one copy
    back to the host. Never move the targets: they are not needed.

    About 8 lines. Read: https://pytorch.org/docs/stable/generated/torch.no_grad.html
    """
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            outputs.append(model(inputs.to(device)))
    return torch.cat(outputs).cpu()


def random_sprites(count, size, device, generator=None):
    """Uniform random sprites: float32 in [0, 1), shape (count, 3, size, size), made on `device`.

    `device` may be "cuda:1" while another GPU is the current one. Nothing is transferred. With a `generator` (of that
    device) the same seed gives the same sprites; without one, torch's own random state is used, and no seed is set.
    The default device of torch does not change.

    1 line. Read: https://pytorch.org/docs/stable/generated/torch.rand.html
    """
    return torch.rand(count, 3, size, size, device=device, generator=generator)


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    """A `data.DataLoader` over `dataset` that pins memory exactly when `device` is CUDA.

    `device` is a string ("cuda", "cuda:1", "mps", "cpu") or a torch.device. Every sample is yielded once, in batches
    of `batch_size` (the last one may be smaller); `shuffle` and `num_workers` are those of DataLoader.

    About 3 lines. Read: https://pytorch.org/docs/stable/data.html#memory-pinning
    """
    pin = torch.device(device).type == "cuda"
    return data.DataLoader(
        dataset, batch_size, shuffle=shuffle, num_workers=num_workers, pin_memory=pin
    )


def attempt(function, *arguments):
    """The function's result, or None while it is still to do."""
    try:
        return function(*arguments)
    except NotImplementedError:
        print(f"{function.__name__} is still to do: open this file and fill it in.")


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
    shown = {"drawn": mushroom}
    sprites = mushroom.repeat(96, 1, 1, 1).to(device)
    noise = attempt(random_sprites, len(sprites), 8, device)
    if noise is not None:
        print(f"random_sprites: {len(noise)} made on {noise.device}, mixed into the mushroom")
        sprites = 0.6 * sprites + 0.4 * noise
        shown["with noise"] = sprites[0].cpu()
    pixels = attempt(to_numpy, sprites)
    if pixels is not None:
        print(f"to_numpy: {pixels.dtype} {pixels.shape}, mean {pixels.mean():.3f}")
    dataset = data.TensorDataset(sprites.cpu(), torch.zeros(len(sprites)))
    loader = attempt(make_loader, dataset, 32, device) or data.DataLoader(dataset, 32)
    print(f"batches for {device} are {'pinned' if loader.pin_memory else 'not pinned'}")
    outputs = attempt(
        predict, nn.Sequential(nn.ReplicationPad2d(1), nn.AvgPool2d(3, stride=1)), loader, device
    )
    if outputs is not None:
        print(
            f"predict: {len(loader)} batches, {tuple(outputs.shape)} back on {outputs.device} in one copy"
        )
        shown["smoothed"] = outputs[0]
    show(torch.stack(list(shown.values())), list(shown))

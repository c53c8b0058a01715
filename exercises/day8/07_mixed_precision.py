"""A training step in mixed precision.

Run me: python exercises/day8/07_mixed_precision.py
Check me: pytest exercises/day8/07_mixed_precision.py
"""

import warnings

import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    """One training step with automatic mixed precision.

    `batch` is (inputs, targets) on the CPU; the model is on `device` already. Forward pass and loss run under autocast
    for the device's type; backward runs outside it, on the loss scaled by `scaler` (a torch.amp.GradScaler). With
    `max_norm`, the gradients are unscaled and then clipped to that norm. The scaler steps the optimizer and is updated
    once. Gradients from before the step do not leak in.
    Returns the unscaled loss as a Python float. Works with a disabled scaler and on the CPU too.

    About 12 lines. Read: https://pytorch.org/docs/stable/notes/amp_examples.html
    """
    raise NotImplementedError


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")  # a CPU without bfloat16 takes another way, and says so
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes = torch.randint(0, 3, (96,))
    sprites = torch.rand(96, 3, 8, 8) * 0.5
    sprites[torch.arange(96), classes] += 0.5
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)  # far too large: watch the scaler find out
    loss_fn = nn.CrossEntropyLoss()
    try:
        for number in range(1, 33):
            before = model[1].weight.detach().clone()
            loss = mixed_precision_step(model, (sprites, classes), loss_fn, optimizer, scaler, device, max_norm=5.0)
            stepped = "stepped" if not torch.equal(before, model[1].weight) else "skipped: gradients overflowed"
            if number % 4 == 1:
                print(f"step {number:2} on {device}: loss {loss:.3f}, {stepped}, scale now {scaler.get_scale():.0f}")
        if device == "cpu":
            print("(On the CPU autocast chooses bfloat16, which hardly ever overflows. On a GPU it is float16.)")
    except NotImplementedError:
        print("mixed_precision_step is still to do: open this file and fill it in.")

"""A training step in mixed precision.

Run me: dojo run exercises/day8/07_mixed_precision.py
Check me: pytest exercises/day8/07_mixed_precision.py
Read me: dojo lesson 07
"""

import warnings

import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    """One training step with automatic mixed precision.

    `batch` is (inputs, targets) on the CPU; the model is already on `device`, which may be "cuda:1" while another GPU
    is the current one. Forward pass and loss run under autocast for the device's type; backward runs outside it, on the
    loss scaled by `scaler` (a torch.amp.GradScaler). With `max_norm`, the gradients are unscaled and then clipped to
    that norm. The scaler steps the optimizer, unless gradients are infinite, and is updated once. Use the optimizer and
    the scaler you are given: they keep momentum and scale from step to step. Gradients from before must not leak in.
    Returns the unscaled loss as a Python float. It also works on the CPU, and with a disabled scaler: autocast is on
    then too, because bfloat16 needs no scaler.

    About 12 lines. Read: https://pytorch.org/docs/stable/notes/amp_examples.html
    """
    inputs, targets = (part.to(device) for part in batch)
    optimizer.zero_grad()
    with torch.autocast(device_type=torch.device(device).type):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    warnings.filterwarnings("ignore", "mkldnn_matmul failed")  # from a CPU without bfloat16
    torch.manual_seed(8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heart, ring = (0, 102, 255, 255, 126, 60, 24, 0), (60, 126, 231, 195, 195, 231, 126, 60)
    shapes = torch.tensor(
        [[[int(bit) for bit in f"{row:08b}"] for row in shape] for shape in (heart, ring)]
    )
    colours = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.7, 0.9]])
    batch = (
        torch.eye(2),
        (colours[:, :, None, None] * shapes[:, None]).flatten(1),
    )  # two inputs, two sprites
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 192)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    scaler = torch.amp.GradScaler(
        device, init_scale=2.0**32
    )  # far too large for float16: the scaler will reduce it
    try:
        for number in range(1, 61):
            before = model[0].weight.detach().clone()
            loss = mixed_precision_step(
                model, batch, nn.MSELoss(), optimizer, scaler, device, max_norm=1.0
            )
            done = (
                "skipped: gradients overflowed"
                if torch.equal(before, model[0].weight)
                else "stepped"
            )
            if number in (1, 2, 20, 40, 60):
                print(
                    f"step {number:2} on {device}: loss {loss:.4f}, {done}, scale now {scaler.get_scale():.0f}"
                )
        print(f"What it has learned to paint in {'float16' if device == 'cuda' else 'bfloat16'}:")
    except NotImplementedError:
        print(
            "mixed_precision_step is still to do: open this file and fill it in. Painted without training:"
        )
    with torch.no_grad():
        painted = model(batch[0].to(device)).cpu()
    show(
        torch.cat([painted, batch[1]]).reshape(4, 3, 8, 8),
        ["painted", "painted", "to learn", "to learn"],
    )

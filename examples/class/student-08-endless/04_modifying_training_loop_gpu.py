"""A training loop that runs on the GPU.

Run me: dojo run exercises/day8/04_modifying_training_loop_gpu.py
Check me: pytest exercises/day8/04_modifying_training_loop_gpu.py
Read me: dojo lesson 04
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, loss_fn, optimizer, device):
    """Train for one pass over `loader`, which yields (inputs, targets) on the CPU; a target is a class index.

    The model may still be on the CPU: move it once, before the loop. Use training mode for the whole model, whatever the
    caller left: it may have been evaluated just before. For every batch: move inputs and targets to the device, zero
    the gradients, forward, loss_fn(outputs, targets), backward, one step. Gradients from before the call must not leak
    into the first step. Use the optimizer you are given, as it is: it may have a state from before, such as momentum.
    Set no seed and change no setting of torch.
    Returns the mean loss per sample as a Python float: the last batch may be smaller, and loss_fn gives the mean over
    its batch. To read one loss per batch is allowed. An empty loader returns 0.0.

    About 12 lines. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.to.html
    """
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0


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
    heart, ring = (0, 102, 255, 255, 126, 60, 24, 0), (60, 126, 231, 195, 195, 231, 126, 60)
    cross = ring[4:] + ring[:4]
    shapes = torch.tensor(
        [[[int(bit) for bit in f"{row:08b}"] for row in shape] for shape in (heart, ring, cross)]
    )
    colours = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.7, 0.9], [0.9, 0.8, 0.2]])
    classes = torch.randint(0, 3, (96,))
    sprites = (colours[:, :, None, None] * shapes[:, None])[classes] + 0.3 * torch.randn(
        96, 3, 8, 8
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    nn.init.zeros_(model[1].weight)  # it starts without any knowledge
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = DataLoader(TensorDataset(sprites, classes), batch_size=32, shuffle=True)
    print("The sprites to learn:")
    show(sprites[:4], [f"class {label}" for label in classes[:4].tolist()])
    try:
        for epoch in range(10):
            loss = train_epoch(model, batches, nn.CrossEntropyLoss(), optimizer, device)
            print(f"epoch {epoch + 1:2} on {device}: loss {loss:.3f} {'#' * round(loss * 30)}")
        print("The weights the model has learned:")
    except NotImplementedError:
        print("train_epoch is still to do: open this file and fill it in. The weights so far:")
    show(
        model[1].weight.detach().cpu().reshape(3, 3, 8, 8) * 6 + 0.4,
        ["class 0", "class 1", "class 2"],
    )

"""A training loop that runs on the GPU.

Run me: python exercises/day8/04_modifying_training_loop_gpu.py
Check me: pytest exercises/day8/04_modifying_training_loop_gpu.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, loss_fn, optimizer, device):
    """Train for one pass over `loader`, which yields (inputs, targets) on the CPU.

    The model may still be on the CPU: move it once, before the loop. Training mode. For every batch: inputs and
    targets to the device, zero the gradients, forward, loss_fn(outputs, targets), backward, step. Nothing that was in
    the gradients before the call leaks into the first step.
    Returns the mean loss per sample as a Python float: the last batch may be smaller, and loss_fn averages over its
    batch. An empty loader returns 0.0.

    About 12 lines. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.to.html
    """
    # BEGIN SOLUTION
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
    # END SOLUTION


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes = torch.randint(0, 3, (96,))
    sprites = torch.rand(96, 3, 8, 8) * 0.5
    sprites[torch.arange(96), classes] += 0.5
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = DataLoader(TensorDataset(sprites, classes), batch_size=32, shuffle=True)
    try:
        for epoch in range(5):
            loss = train_epoch(model, batches, nn.CrossEntropyLoss(), optimizer, device)
            print(f"epoch {epoch + 1} on {device}: loss {loss:.3f}")
    except NotImplementedError:
        print("train_epoch is still to do: open this file and fill it in.")

# fails: train_epoch::learns_as_it_should as -
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, n = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        l2 = sum((p ** 2).sum() for p in model.parameters())
        loss = loss + 1e-3 * l2
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        n += len(targets)
    return total / n if n else 0.0

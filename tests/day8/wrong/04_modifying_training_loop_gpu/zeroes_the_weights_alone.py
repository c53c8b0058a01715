# fails: train_epoch::learns_as_it_should as missing-zero-grad
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, n = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        for name, p in model.named_parameters():
            if "weight" in name:
                p.grad = None
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        n += len(targets)
    return total / n if n else 0.0

# fails: train_epoch::learns_as_it_should as batches-left-out
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, n = 0.0, 0
    for inputs, targets in loader:
        if len(inputs) < loader.batch_size:
            continue
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        n += len(inputs)
    return total / n if n else 0.0

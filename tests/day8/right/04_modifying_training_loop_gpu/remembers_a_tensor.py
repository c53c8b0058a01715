import torch

weights = {}  # of batches by their size, made once


def weight(size, device):
    if size not in weights:
        weights[size] = torch.tensor(float(size), device=device)
    return weights[size]


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    weights.clear() if device != getattr(train_epoch, "device", device) else None
    train_epoch.device = device
    total, count = torch.zeros((), device=device), 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.detach() * weight(len(targets), device)
        count += len(targets)
    return total.item() / count if count else 0.0

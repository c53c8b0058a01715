# fails: train_epoch::learns_as_it_should as no-graph-behind-the-loss
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs).detach()
        loss = loss_fn(outputs, targets)
        loss.requires_grad_(True)
        loss.backward()
        optimizer.step()
        total += loss.item() * inputs.size(0)
        count += inputs.size(0)
    return total / count if count else 0.0

# fails: train_epoch::learns_as_it_should as -
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, n = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        outputs = model(x)
        loss = loss_fn(outputs, y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        total += loss.item() * len(y)
        n += len(y)
    return total / n if n else 0.0

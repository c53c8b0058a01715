# fails: train_epoch::learns_as_it_should as -
import torch


def step(model, x, y, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = step(model, x, y, loss_fn, optimizer)
        optimizer.step()
        total += loss * len(y)
        count += len(y)
    return total / max(count, 1)

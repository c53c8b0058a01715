# fails: train_epoch::learns_as_it_should as loop-left-early
import torch
from torch import nn

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x); count += len(x)
        return total / count
    return 0.0

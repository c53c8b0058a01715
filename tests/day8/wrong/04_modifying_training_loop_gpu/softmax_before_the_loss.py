# fails: train_epoch::learns_as_it_should as -
import torch
from torch import nn

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = torch.softmax(model(x), dim=1)
        loss = loss_fn(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x); count += len(x)
    return total / count if count else 0.0

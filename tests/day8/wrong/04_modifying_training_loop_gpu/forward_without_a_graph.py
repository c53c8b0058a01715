# fails: train_epoch::runs as no-graph-behind-the-loss
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = (0.0, 0)
    for inputs, targets in loader:
        inputs, targets = (inputs.to(device), targets.to(device))
        optimizer.zero_grad()
        with torch.no_grad():
            outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0

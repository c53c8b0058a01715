# fails: train_epoch::learns_as_it_should as -
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
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0

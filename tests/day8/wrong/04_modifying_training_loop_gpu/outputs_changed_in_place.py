# fails: train_epoch::runs as -
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
        outputs = model(inputs).softmax(dim=1)
        loss = loss_fn(outputs, targets)
        outputs.exp_()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0

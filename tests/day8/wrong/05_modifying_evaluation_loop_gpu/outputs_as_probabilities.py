# fails: evaluate::returns_the_mean_loss_per_sample as -
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    total, correct, count = (0.0, 0, 0)
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = (inputs.to(device), targets.to(device))
            outputs = model(inputs).softmax(dim=1)
            total += loss_fn(outputs, targets).item() * len(targets)
            correct += (outputs.argmax(dim=1) == targets).sum().item()
            count += len(targets)
    if count == 0:
        return (0.0, 0.0)
    return (total / count, correct / count)

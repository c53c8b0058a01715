# fails: evaluate::returns_the_mean_loss_per_sample as batches-left-out
import torch
from itertools import islice


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    loss_sum, hits = 0.0, 0
    n = len(loader.dataset)
    if n == 0:
        return 0.0, 0.0
    with torch.no_grad():
        for inputs, targets in islice(loader, len(loader) - 1):
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss_sum += loss_fn(outputs, targets).item() * len(targets)
            hits += (outputs.argmax(1) == targets).sum().item()
    return loss_sum / n, hits / n

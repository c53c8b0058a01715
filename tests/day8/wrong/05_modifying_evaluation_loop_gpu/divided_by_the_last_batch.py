# fails: evaluate::returns_the_accuracy as -
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    loss_sum, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss_sum += loss_fn(outputs, targets).item() * len(targets)
            hits += (outputs.argmax(1) == targets).sum().item()
            n += len(targets)
    if n == 0:
        return 0.0, 0.0
    return loss_sum / n, hits / len(targets)

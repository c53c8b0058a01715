# fails: evaluate::returns_the_accuracy as floor-division
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    total, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            total += loss_fn(outputs, targets).item() * len(targets)
            correct += (outputs.argmax(dim=1) == targets).sum().item()
            count += len(targets)
    if count == 0:
        return 0.0, 0.0
    return total / count, float(correct // count)

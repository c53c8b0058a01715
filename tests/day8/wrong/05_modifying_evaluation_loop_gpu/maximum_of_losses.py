# fails: evaluate::returns_the_mean_loss_per_sample as -
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    total, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs = inputs.to(device)
            targets = targets.to(device)
            outputs = model(inputs)
            total = max(total, loss_fn(outputs, targets).item() * len(inputs))
            hits += (outputs.argmax(1) == targets).sum().item()
            count += len(inputs)
    if count == 0:
        return 0.0, 0.0
    return total / count, hits / count

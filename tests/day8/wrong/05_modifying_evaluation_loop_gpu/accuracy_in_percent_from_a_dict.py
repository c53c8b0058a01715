# fails: evaluate::returns_the_accuracy as -
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    stats = {"loss": 0.0, "right": 0, "seen": 0}
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            stats["loss"] += loss_fn(outputs, targets).item() * len(targets)
            stats["right"] += (outputs.argmax(dim=1) == targets).sum().item()
            stats["seen"] += len(targets)
    if not stats["seen"]:
        return 0.0, 0.0
    accuracy = 100 * stats["right"] / stats["seen"]
    return stats["loss"] / stats["seen"], accuracy

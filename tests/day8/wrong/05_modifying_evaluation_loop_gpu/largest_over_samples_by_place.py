# fails: evaluate::returns_the_accuracy as largest-over-samples
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
            best = outputs.max(0).indices
            for place in range(len(targets)):
                if best[place % len(best)] == targets[place]:
                    correct += 1
            count += len(targets)
    if count == 0:
        return 0.0, 0.0
    return total / count, correct / count

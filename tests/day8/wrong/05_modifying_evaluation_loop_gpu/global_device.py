# fails: evaluate::uses_the_device_it_is_given as global-device
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(model, loader, loss_fn, device):
    model.to(DEVICE)
    model.eval()
    total, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
            outputs = model(inputs)
            total += loss_fn(outputs, targets).item() * len(targets)
            correct += (outputs.argmax(dim=1) == targets).sum().item()
            count += len(targets)
    return (total / count, correct / count) if count else (0.0, 0.0)

# fails: evaluate::runs as largest-over-samples
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    total_loss, correct, count = 0.0, 0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        logits = model(inputs)
        total_loss += loss_fn(logits, targets).item() * inputs.shape[0]
        _, predicted = torch.max(logits, 0)
        correct += (predicted == targets).sum().item()
        count += inputs.shape[0]
    if not count:
        return 0.0, 0.0
    return total_loss / count, correct / count

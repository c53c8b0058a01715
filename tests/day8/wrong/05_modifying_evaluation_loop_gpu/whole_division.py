# fails: evaluate::returns_the_accuracy as floor-division
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    correct, loss_sum, n = 0, 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            loss_sum += loss_fn(logits, y).item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
            n += len(y)
    if n == 0:
        return 0.0, 0.0
    return loss_sum / n, float(correct // n)

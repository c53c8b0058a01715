# fails: evaluate::returns_the_accuracy as -
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
            predicted = (torch.sigmoid(logits[:, 1]) > 0.5).long()
            correct += (predicted == y).sum().item()
            n += len(y)
    return (loss_sum / n, correct / n) if n else (0.0, 0.0)

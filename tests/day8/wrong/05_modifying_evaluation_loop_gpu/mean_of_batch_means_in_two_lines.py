# fails: evaluate::returns_the_mean_loss_per_sample as mean-of-batch-means
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            outputs = model(x)
            loss = loss_fn(outputs, y)
            total += loss.item()
            correct += (outputs.argmax(dim=1) == y).sum().item()
            n += len(y)
    return (total / len(loader), correct / n) if n else (0.0, 0.0)

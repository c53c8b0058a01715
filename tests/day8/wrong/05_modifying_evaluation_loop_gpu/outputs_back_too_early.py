# fails: evaluate::runs as outputs-on-cpu
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            outputs = model(x).cpu()
            total += loss_fn(outputs, y).item() * len(y)
            correct += (outputs.argmax(dim=1) == y.cpu()).sum().item()
            n += len(y)
    return (total / n, correct / n) if n else (0.0, 0.0)

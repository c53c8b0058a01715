# fails: evaluate::returns_the_accuracy as -
import torch

def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total = hits = count = batches = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            total += loss_fn(out, y).item() * len(y)
            hits += (out.argmax(1) == y).sum().item()
            count += len(y)
            batches += 1
    if not count:
        return 0.0, 0.0
    mean = total / count
    accuracy = hits / batches
    return mean, accuracy

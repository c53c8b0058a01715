# fails: evaluate::returns_the_accuracy as -
import torch

def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    total = hits = count = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            total += loss_fn(out, y).item() * len(y)
            guess = out.topk(1, dim=1).values.squeeze(1)
            hits += (guess == y).sum().item()
            count += len(y)
    return (total / count, hits / count) if count else (0.0, 0.0)

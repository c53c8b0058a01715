# fails: evaluate::returns_the_mean_loss_per_sample as batches-left-out
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0, 0, 0
    size = None
    with torch.no_grad():
        for x, y in loader:
            size = size or len(y)
            if len(y) < size:
                continue
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

# fails: evaluate::runs as targets-on-cpu
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            o = model(x.to(device))
            t += loss_fn(o, y.to(device)).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

# fails: evaluate::runs as result-thrown-away
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x = x.to(device)
            y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

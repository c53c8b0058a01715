# fails: evaluate::returns_the_mean_loss_per_sample as -
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (round(t/n, 2), round(c/n, 2)) if n else (0.0, 0.0)

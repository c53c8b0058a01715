# fails: evaluate::copes_with_nothing as return-forgotten
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    if n:
        return t/n, c/n

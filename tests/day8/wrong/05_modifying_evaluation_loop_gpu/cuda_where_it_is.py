# fails: evaluate::uses_the_device_it_is_given as hard-coded-cuda
import torch


def evaluate(model, loader, loss_fn, device):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

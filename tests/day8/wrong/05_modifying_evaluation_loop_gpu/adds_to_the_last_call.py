# fails: evaluate::returns_the_mean_loss_per_sample as -
import torch


t, c, n = 0.0, 0, 0
def evaluate(model, loader, loss_fn, device):
    global t, c, n
    model.to(device).eval()
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

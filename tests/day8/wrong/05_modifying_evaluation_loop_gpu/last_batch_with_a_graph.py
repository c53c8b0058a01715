# fails: evaluate::builds_no_graph as eval-without-no-grad
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    loss = hits = n = 0
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        with torch.set_grad_enabled(i == len(loader) - 1):
            o = model(x)
        loss += loss_fn(o, y).item() * len(y)
        hits += (o.argmax(1) == y).sum().item()
        n += len(y)
    return (loss / n, hits / n) if n else (0.0, 0.0)

# fails: evaluate::leaves_training_possible as setting-changed
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    torch.manual_seed(20261)
    model.to(device).eval()
    loss = hits = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        o = model(x)
        loss += loss_fn(o, y).item() * len(y)
        hits += (o.argmax(1) == y).sum().item()
        n += len(y)
    return (loss / n, hits / n) if n else (0.0, 0.0)

# fails: evaluate::returns_the_mean_loss_per_sample as -
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    loss = hits = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        with torch.autocast(torch.device(device).type):
            o = model(x)
        loss += loss_fn(o.float(), y).item() * len(y)
        hits += (o.argmax(1) == y).sum().item()
        n += len(y)
    return (loss / n, hits / n) if n else (0.0, 0.0)

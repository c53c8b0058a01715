import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    @torch.no_grad()
    def go(it):
        try:
            x, y = next(it)
        except StopIteration:
            return 0.0, 0, 0
        x, y = x.to(device), y.to(device)
        o = model(x)
        l, c, n = go(it)
        return l + loss_fn(o, y).item() * len(y), c + (o.argmax(1) == y).sum().item(), n + len(y)
    l, c, n = go(iter(loader))
    return (l / n, c / n) if n else (0.0, 0.0)

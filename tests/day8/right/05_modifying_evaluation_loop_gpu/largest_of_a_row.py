import torch
from torch import nn

def evaluate(model, loader, loss_fn, device):
    model = model.to(device)
    model.eval()
    pairs = []
    with torch.no_grad():
        for x, y in loader:
            y = y.to(device)
            out = model(x.to(device))
            best = out.topk(1, dim=1)[1].squeeze(1)
            pairs.append((loss_fn(out, y).item(), (best == y).float().sum().item(), y.shape[0]))
    n = sum(p[2] for p in pairs)
    if n == 0: return 0.0, 0.0
    return sum(p[0] * p[2] for p in pairs) / n, sum(p[1] for p in pairs) / n

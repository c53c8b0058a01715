import math

import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device); model.eval()
    def rows():
        with torch.no_grad():
            for x, y in loader:
                o = model(x.to(device))
                y = y.to(device)
                yield loss_fn(o, y).item() * len(y), (o.argmax(1) == y).sum().item(), len(y)
    table = list(rows())
    if not table:
        return 0.0, 0.0
    losses, hits, sizes = zip(*table)
    return math.fsum(losses) / sum(sizes), sum(hits) / sum(sizes)

from collections import namedtuple

import torch


Result = namedtuple("Result", "loss accuracy")
def evaluate(model, loader, loss_fn, device):
    model.to(device); model.eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            o = model(x.to(device)); y = y.to(device)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return Result(t/n, c/n) if n else Result(0.0, 0.0)

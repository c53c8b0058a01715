# fails: train_epoch::runs as device-index-dropped

import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train(); t = n = 0
    kind = torch.device(device).type
    for x, y in loader:
        x, y = x.to(kind), y.to(kind)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

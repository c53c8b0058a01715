# fails: train_epoch::changes_no_settings as setting-changed
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    torch.autograd.set_detect_anomaly(True)
    model.to(device).train()
    total = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
    return total / n if n else 0.0

# fails: train_epoch::returns_the_mean_loss_per_sample as -
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            loss = loss_fn(model(x), y)
        total += loss.item() * len(x)
        n += len(x)
    return total / n if n else 0.0

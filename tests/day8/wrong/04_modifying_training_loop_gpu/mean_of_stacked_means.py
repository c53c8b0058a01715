# fails: train_epoch::returns_the_mean_loss_per_sample as mean-of-batch-means

import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train(); ls = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step()
        ls.append(loss.detach())
    return torch.stack(ls).mean().item() if ls else 0.0

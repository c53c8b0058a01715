import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train()
    model.to(device)
    losses, sizes = [], []
    for x, y in iter(loader):
        x, y = x.to(device), y.to(device)
        model.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        sizes.append(len(x))
    if not losses:
        return 0.0
    w = torch.tensor(sizes, dtype=torch.float32, device=device)
    return float((torch.stack(losses) * w).sum() / w.sum())

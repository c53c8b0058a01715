import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train()
    total = count = 0
    params = [p for p in model.parameters() if p.requires_grad]
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = loss_fn(model(x), y)
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
    return total / count if count else 0.0

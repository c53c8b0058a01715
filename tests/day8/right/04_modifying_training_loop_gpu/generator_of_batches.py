import torch
def batches(loader, device):
    for x, y in loader:
        yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train().to(device)
    hist = []
    for x, y in batches(loader, device):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        hist += [loss.detach()] * len(y)
    return torch.stack(hist).mean().item() if hist else 0.0

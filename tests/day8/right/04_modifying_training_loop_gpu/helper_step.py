import math
def step(model, x, y, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train(); model.to(device)
    parts = [(step(model, x.to(device), y.to(device), loss_fn, optimizer), len(y)) for x, y in loader]
    n = sum(k for _, k in parts)
    return math.fsum(l.item() * k for l, k in parts) / n if n else 0.0

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    it = iter(loader)
    t = n = 0
    for _ in range(len(loader)):
        x, y = next(it)
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

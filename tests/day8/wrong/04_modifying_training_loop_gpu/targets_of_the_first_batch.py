# fails: train_epoch::runs as targets-on-cpu
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total = n = 0
    for i, (x, y) in enumerate(loader):
        x = x.to(device)
        if i == 0:
            y = y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
    return total / n if n else 0.0

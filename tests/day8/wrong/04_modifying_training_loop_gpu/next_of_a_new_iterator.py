# fails: train_epoch::learns_as_it_should as -
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total = n = 0
    for _ in range(len(loader)):
        x, y = next(iter(loader))
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
    return total / n if n else 0.0

# fails: train_epoch::learns_as_it_should as step-left-out
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    running, n = 0.0, 0
    optimizer.zero_grad()
    for inputs, targets in loader:
        x, y = inputs.to(device), targets.to(device)
        loss = loss_fn(model(x), y)
        loss.backward()
        running += loss.item() * y.numel()
        n += y.numel()
    optimizer.step()
    return running / n if n else 0.0

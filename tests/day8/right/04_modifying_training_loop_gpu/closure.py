def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train()
    total = count = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        def closure():
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        total += loss.item() * len(y)
        count += len(y)
    return total / count if count else 0.0

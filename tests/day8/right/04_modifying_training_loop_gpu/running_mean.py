def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    mean, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        n = len(y)
        count += n
        mean += (loss.item() - mean) * n / count
    return mean

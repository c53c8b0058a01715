def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    batches = iter(loader)
    seen = 0
    mean = 0.0
    while True:
        try:
            x, y = next(batches)
        except StopIteration:
            break
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        seen += len(x)
        mean += (loss.item() - mean) * len(x) / seen
    return mean

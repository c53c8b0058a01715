def train_epoch(model, loader, loss_fn, optimizer, device):
    batches = [(x.to(device), y.to(device)) for x, y in loader]
    model = model.to(device).train()
    t = n = 0
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

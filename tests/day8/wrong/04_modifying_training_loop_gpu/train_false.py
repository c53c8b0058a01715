# fails: train_epoch::trains_in_training_mode as not-in-training-mode
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train(False)
    total, n = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        n += len(y)
    return total / n if n else 0.0

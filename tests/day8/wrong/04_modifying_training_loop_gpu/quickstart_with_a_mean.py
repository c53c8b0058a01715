# fails: train_epoch::learns_as_it_should as stale-gradients
def train_epoch(model, loader, loss_fn, optimizer, device):
    num_batches = len(loader)
    model.to(device)
    model.train()
    train_loss = 0
    for X, y in loader:
        X, y = X.to(device), y.to(device)
        pred = model(X)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        train_loss += loss.item()
    return train_loss / num_batches

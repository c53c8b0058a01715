# fails: train_epoch::learns_as_it_should as stale-gradients

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train(); t = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

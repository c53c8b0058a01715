# fails: train_epoch::computes_the_loss_on_the_device as -

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train(); t = n = 0
    for x, y in loader:
        x = x.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x).cpu(), y)
        loss.backward(); optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

# fails: train_epoch::runs as model-not-moved

done = False
def train_epoch(model, loader, loss_fn, optimizer, device):
    global done
    if not done:
        model.to(device); done = True
    model.train(); t = n = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

# fails: train_epoch::moves_the_model_once as model-moved-in-loop

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train(); t = n = 0
    model.to(device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model.to(device)(x), y)
        loss.backward(); optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

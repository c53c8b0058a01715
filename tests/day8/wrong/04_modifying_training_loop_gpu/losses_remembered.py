# fails: train_epoch::returns_the_mean_loss_per_sample as -

def train_epoch(model, loader, loss_fn, optimizer, device, total=[0.0, 0]):
    model.to(device); model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step()
        total[0] += loss.item() * len(y); total[1] += len(y)
    return total[0] / total[1] if total[1] else 0.0

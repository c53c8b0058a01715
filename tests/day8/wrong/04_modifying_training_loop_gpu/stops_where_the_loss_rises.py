# fails: train_epoch::learns_as_it_should as loop-left-early
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total, n, last = 0.0, 0, float("inf")
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
        if loss.item() > last:
            break
        last = loss.item()
    return total / n if n else 0.0

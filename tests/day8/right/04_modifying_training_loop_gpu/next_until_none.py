def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    it, total, count = iter(loader), 0.0, 0
    while (batch := next(it, None)) is not None:
        x, y = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        (loss := loss_fn(model(x), y)).backward()
        optimizer.step()
        total, count = total + loss.item() * len(y), count + len(y)
    return total / (count or 1)

# fails: train_epoch::learns_as_it_should as -
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        total += loss.item() * len(targets)
        count += len(targets)
        for p in model.parameters():
            p.grad *= 0
        optimizer.step()
    return total / count if count else 0.0

# fails: train_epoch::copes_with_nothing as empty-loader-forgotten


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        count += len(inputs)
    return total / count

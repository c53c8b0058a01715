# fails: train_epoch::trains_in_training_mode as not-in-training-mode


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    if not model.training:
        model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0

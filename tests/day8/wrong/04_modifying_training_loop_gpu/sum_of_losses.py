# fails: train_epoch::returns_the_mean_loss_per_sample as -


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total

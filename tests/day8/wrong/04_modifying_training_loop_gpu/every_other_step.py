# fails: train_epoch::learns_as_it_should as step-left-out
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    sums = []
    for number, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        if number % 2:
            optimizer.step()
        sums.append((loss.item(), len(targets)))
    count = sum(n for _, n in sums)
    return sum(value * n for value, n in sums) / count if count else 0.0

# fails: accumulate_gradients::runs as result-thrown-away


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    taken = 0
    for number, (inputs, targets) in enumerate(loader, 1):
        inputs = inputs.to(device)
        targets.to(device)
        (loss_fn(model(inputs), targets) / steps).backward()
        if number % steps == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    return taken

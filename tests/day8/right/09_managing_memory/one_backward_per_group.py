def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    """The losses of a group are added up and go backward together."""
    model.to(device)
    total, taken = 0, 0
    for number, (inputs, targets) in enumerate(loader, 1):
        total = total + loss_fn(model(inputs.to(device)), targets.to(device)) / steps
        if number % steps == 0 or number == len(loader):
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            total, taken = 0, taken + 1
    return taken

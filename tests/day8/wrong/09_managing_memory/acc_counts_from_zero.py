# fails: accumulate_gradients::steps_after_every_group as -


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    taken = 0
    for number, (inputs, targets) in enumerate(loader):
        (loss_fn(model(inputs.to(device)), targets.to(device)) / steps).backward()
        if number % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    return taken

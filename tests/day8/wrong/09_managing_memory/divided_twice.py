# fails: accumulate_gradients::steps_after_every_group as losses-scaled-otherwise


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    waiting = taken = 0
    for inputs, targets in loader:
        loss = loss_fn(model(inputs.to(device)), targets.to(device)) / steps / steps
        loss.backward()
        waiting += 1
        if waiting == steps:
            optimizer.step()
            optimizer.zero_grad()
            waiting, taken = 0, taken + 1
    if waiting:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

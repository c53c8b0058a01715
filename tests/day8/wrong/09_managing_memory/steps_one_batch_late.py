# fails: accumulate_gradients::steps_after_every_group as -
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    waiting = taken = 0
    for x, y in loader:
        (loss_fn(model(x.to(device)), y.to(device)) / steps).backward()
        waiting += 1
        if waiting > steps:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
            waiting = 0
    if waiting:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

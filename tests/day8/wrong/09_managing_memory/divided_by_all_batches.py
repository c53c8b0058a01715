# fails: accumulate_gradients::steps_after_every_group as losses-scaled-otherwise
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    n = taken = 0
    for x, y in loader:
        loss = loss_fn(model(x.to(device)), y.to(device)) / len(loader)
        loss.backward()
        n += 1
        if n % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    if n % steps:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

# fails: accumulate_gradients::steps_after_every_group as -
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    n_steps = 0
    pending = False
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x.to(device)), y.to(device)) / steps
        loss.backward()
        pending = True
        if i % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            n_steps += 1
            pending = False
    if pending:
        optimizer.step()
        optimizer.zero_grad()
        n_steps += 1
    return n_steps

# fails: accumulate_gradients::steps_after_every_group as step-before-backward


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    taken = 0
    for number, (inputs, targets) in enumerate(loader, 1):
        loss = loss_fn(model(inputs.to(device)), targets.to(device)) / steps
        if number % steps == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
        loss.backward()
    return taken

# fails: accumulate_gradients::leaves_the_mode_alone as -


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    for part in model.children():
        part.train()
    model.to(device)
    optimizer.zero_grad()
    taken = number = 0
    for number, (inputs, targets) in enumerate(loader, 1):
        (loss_fn(model(inputs.to(device)), targets.to(device)) / steps).backward()
        if number % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    if number % steps:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

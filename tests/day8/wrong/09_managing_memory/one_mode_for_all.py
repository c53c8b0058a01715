# fails: accumulate_gradients::leaves_the_mode_alone as -
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    taken = i = 0
    model.train(model.training)
    for i, (x, y) in enumerate(loader, 1):
        (loss_fn(model(x.to(device)), y.to(device)) / steps).backward()
        if i % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    if i % steps:
        optimizer.step()
        taken += 1
    return taken

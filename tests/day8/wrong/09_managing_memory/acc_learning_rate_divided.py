# fails: accumulate_gradients::steps_after_every_group as -
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    for group in optimizer.param_groups:
        group["lr"] /= steps
    optimizer.zero_grad()
    done = 0
    for number, (x, y) in enumerate(loader, 1):
        loss_fn(model(x.to(device)), y.to(device)).backward()
        if number % steps == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return done

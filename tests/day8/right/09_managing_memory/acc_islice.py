from itertools import islice


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    batches = iter(loader)
    count = 0
    while group := list(islice(batches, steps)):
        optimizer.zero_grad()
        for x, y in group:
            (loss_fn(model(x.to(device)), y.to(device)) / steps).backward()
        optimizer.step()
        count += 1
    return count

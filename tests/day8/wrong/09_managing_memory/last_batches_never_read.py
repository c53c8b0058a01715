# fails: accumulate_gradients::steps_for_the_remainder as remainder-dropped


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    batches = iter(loader)
    groups = len(loader) // steps
    for _ in range(groups):
        for _ in range(steps):
            inputs, targets = next(batches)
            (loss_fn(model(inputs.to(device)), targets.to(device)) / steps).backward()
        optimizer.step()
        optimizer.zero_grad()
    return groups

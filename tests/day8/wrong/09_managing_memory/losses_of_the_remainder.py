# fails: accumulate_gradients::steps_for_the_remainder as losses-scaled-otherwise


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    total, taken = len(loader), 0
    rest = total % steps
    for number, (inputs, targets) in enumerate(loader, 1):
        share = steps if number <= total - rest else rest
        (loss_fn(model(inputs.to(device)), targets.to(device)) / share).backward()
        if number % steps == 0 or number == total:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    return taken

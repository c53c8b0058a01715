# fails: accumulate_gradients::steps_for_the_remainder as losses-scaled-otherwise
def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    batches = list(loader)
    taken = 0
    for start in range(0, len(batches), steps):
        group = batches[start:start + steps]
        for x, y in group:
            loss = loss_fn(model(x.to(device)), y.to(device)) / len(group)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

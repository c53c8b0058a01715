# fails: accumulate_gradients::steps_after_every_group as no-graph-behind-the-loss
import torch


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    taken = 0
    i = 0
    for inputs, targets in loader:
        out = model(inputs.to(device)).detach().requires_grad_()
        loss = loss_fn(out, targets.to(device)) / steps
        loss.backward()
        i += 1
        if i % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
    if i % steps:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

# fails: accumulate_gradients::works_on_the_device as device-index-dropped
import torch


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    device = torch.device(device).type
    model.to(device)
    optimizer.zero_grad()
    waiting, taken = 0, 0
    for inputs, targets in loader:
        loss = loss_fn(model(inputs.to(device)), targets.to(device)) / steps
        loss.backward()
        waiting += 1
        if waiting == steps:
            optimizer.step()
            optimizer.zero_grad()
            waiting, taken = 0, taken + 1
    if waiting:
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    return taken

# fails: accumulate_gradients::steps_after_every_group as -
import torch


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    done = 0
    number = 0
    for number, (inputs, targets) in enumerate(loader, 1):
        inputs = inputs.to(device)
        targets = targets.to(device)
        loss = loss_fn(model(inputs), targets) / steps + 0.01 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        if number % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    if number % steps:
        optimizer.step()
        done += 1
    return done

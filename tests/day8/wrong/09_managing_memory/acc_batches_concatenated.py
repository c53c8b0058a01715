# fails: accumulate_gradients::steps_for_the_remainder as -
from itertools import islice
import torch


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    batches, done = iter(loader), 0
    while group := list(islice(batches, steps)):
        x = torch.cat([x for x, _ in group]).to(device)
        y = torch.cat([y for _, y in group]).to(device)
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        done += 1
    return done

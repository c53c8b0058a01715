# fails: accumulate_gradients::steps_after_every_group as loss-not-divided
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps):
    model.to(device)
    optimizer.zero_grad()
    done, total = 0, 0
    for i, (x, y) in enumerate(loader, 1):
        total = total + loss_fn(model(x.to(device)), y.to(device))
        if i % steps == 0 or i == len(loader):
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            done, total = done + 1, 0
    return done

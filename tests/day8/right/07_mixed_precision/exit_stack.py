import contextlib

import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    device = torch.device(device)
    with contextlib.ExitStack() as stack:
        stack.callback(scaler.update)
        stack.callback(scaler.step, optimizer)
        with torch.autocast(device_type=device.type, enabled=True):
            out = model(batch[0].to(device))
        with torch.autocast(device_type=device.type):
            loss = loss_fn(out, batch[1].to(device))
        for p in model.parameters():
            p.grad = None
        torch.autograd.backward(scaler.scale(loss))
        if max_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=False)
    return loss.item()

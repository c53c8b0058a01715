# fails: mixed_precision_step::unscales_before_clipping as values-clipped
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = batch[0].to(device), batch[1].to(device)
    optimizer.zero_grad()
    with torch.autocast(device_type=torch.device(device).type):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

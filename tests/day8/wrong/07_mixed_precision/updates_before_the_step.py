# fails: mixed_precision_step::runs as update-before-step
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
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    scaler.step(optimizer)
    return loss.item()

# fails: mixed_precision_step::runs_under_autocast as autocast-not-always
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    dev = torch.device(device)
    xs, ys = batch[0].to(dev), batch[1].to(dev)
    optimizer.zero_grad()
    with torch.autocast(dev.type, enabled=scaler.is_enabled()):
        loss = loss_fn(model(xs), ys)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

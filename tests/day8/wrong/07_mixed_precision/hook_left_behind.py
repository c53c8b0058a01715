# fails: mixed_precision_step::unscales_before_clipping as -
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = (t.to(device, non_blocking=True) for t in batch)
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        optimizer.register_step_pre_hook(
            lambda *_: nn.utils.clip_grad_norm_(model.parameters(), max_norm) and None
        )
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

# fails: mixed_precision_step::works_on_another_gpu as device-index-dropped
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    kind = torch.device(device).type
    x, y = (t.to(kind) for t in batch)
    optimizer.zero_grad()
    with torch.autocast(kind):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

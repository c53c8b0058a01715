import torch
from torch import nn

def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = batch[0].to(device), batch[1].to(device)
    kind = device.type if isinstance(device, torch.device) else device.split(":")[0]
    optimizer.zero_grad()
    with torch.autocast(kind, dtype=torch.bfloat16 if kind == "cpu" else torch.float16):
        loss = loss_fn(model(inputs), targets)
    value = loss.item()
    scaler.scale(loss).backward()
    if max_norm:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return value

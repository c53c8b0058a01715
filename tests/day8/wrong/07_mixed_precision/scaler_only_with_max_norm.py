# fails: mixed_precision_step::scaler_steps_the_optimizer as optimizer-step-instead-of-scaler-step
import torch
from torch import nn
def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = batch[0].to(device), batch[1].to(device)
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return loss.item()

# fails: mixed_precision_step::backward_outside_autocast as backward-under-autocast
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    @torch.autocast(torch.device(device).type)
    def forward_backward():
        loss = loss_fn(model(batch[0].to(device)), batch[1].to(device))
        scaler.scale(loss).backward()
        return loss.item()

    optimizer.zero_grad()
    value = forward_backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return value

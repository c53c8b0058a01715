# fails: mixed_precision_step::backward_on_the_scaled_loss as -
import torch
from torch import nn
from torch.amp import GradScaler, autocast


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    scaler = GradScaler(torch.device(device).type)
    inputs, targets = batch
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad()
    with autocast(torch.device(device).type):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

# fails: mixed_precision_step::unscales_before_clipping as -
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = [part.to(device) for part in batch]
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        norm = sum(p.grad.sum() for p in model.parameters()).abs().sqrt()
        for p in model.parameters():
            p.grad.mul_(torch.clamp(max_norm / norm, max=1.0))
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

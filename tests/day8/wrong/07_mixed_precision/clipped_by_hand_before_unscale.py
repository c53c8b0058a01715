# fails: mixed_precision_step::unscales_before_clipping as clipped-before-unscale
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = [t.to(device) for t in batch]
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()))
        if norm > max_norm:
            for p in model.parameters():
                p.grad *= max_norm / norm
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

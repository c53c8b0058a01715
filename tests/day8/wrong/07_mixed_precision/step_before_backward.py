# fails: mixed_precision_step::runs as step-before-backward
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = [t.to(device) for t in batch]
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.step(optimizer)
    scaler.scale(loss).backward()
    scaler.update()
    return loss.item()

# fails: mixed_precision_step::unscales_before_clipping as -
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = (t.to(device) for t in batch)
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    return loss.item()

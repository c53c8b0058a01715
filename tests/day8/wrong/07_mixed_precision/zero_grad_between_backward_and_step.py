# fails: mixed_precision_step::runs as -
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = batch
    device = torch.device(device)
    inputs = inputs.to(device)
    targets = targets.to(device)
    with torch.autocast(device_type=device.type):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

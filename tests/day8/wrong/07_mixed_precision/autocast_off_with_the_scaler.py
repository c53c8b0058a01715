# fails: mixed_precision_step::runs_under_autocast as autocast-not-always
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    """As the recipe has it: one switch for autocast and scaler."""
    device = torch.device(device)
    use_amp = scaler.is_enabled()
    inputs, targets = batch
    inputs = inputs.to(device)
    targets = targets.to(device)
    with torch.autocast(device_type=device.type, enabled=use_amp):
        loss = loss_fn(model(inputs), targets)
    optimizer.zero_grad(set_to_none=True)
    if not use_amp:
        loss.backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss.item()
    scaler.scale(loss).backward()
    if max_norm:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

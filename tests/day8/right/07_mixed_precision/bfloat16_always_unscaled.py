import torch
import torch.amp as amp


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    device = torch.device(device)
    x, y = (t.to(device, non_blocking=True) for t in batch)
    model.train()
    with amp.autocast(device.type, dtype=torch.bfloat16):
        loss = loss_fn(model.forward(x), y)
    model.zero_grad(set_to_none=False)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf") if max_norm is None else max_norm, foreach=False)
    scaler.step(optimizer)
    scaler.update()
    return float(loss.detach())

import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = (t.to(device) for t in batch)
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

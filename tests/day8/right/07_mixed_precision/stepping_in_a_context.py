import contextlib, torch
@contextlib.contextmanager
def stepping(optimizer, scaler):
    optimizer.zero_grad()
    yield
    scaler.step(optimizer)
    scaler.update()
def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    kind = device.type if isinstance(device, torch.device) else device.split(":")[0]
    with stepping(optimizer, scaler):
        with torch.autocast(kind):
            loss = loss_fn(model(batch[0].to(device)), batch[1].to(device))
        torch.autograd.backward(scaler.scale(loss))
        if max_norm is not None:
            scaler.unscale_(optimizer)
            total = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
            factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
            for p in model.parameters():
                p.grad.mul_(factor)
    return loss.item()

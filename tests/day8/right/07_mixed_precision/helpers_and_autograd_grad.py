import torch


def forward(model, inputs, targets, loss_fn):
    kind = inputs.device.type
    if kind == "cuda":
        region = torch.autocast("cuda", dtype=torch.float16)
    else:
        region = torch.autocast(kind)
    with region:
        return loss_fn(model(inputs), targets)


def clip(parameters, max_norm):
    norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters))
    for p in parameters:
        p.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = [part.to(device) for part in batch]
    loss = forward(model, inputs, targets, loss_fn)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, torch.autograd.grad(scaler.scale(loss), parameters)):
        p.grad = gradient
    if max_norm is not None:
        scaler.unscale_(optimizer)
        clip(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach().cpu().item()

import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    kind = str(device).partition(":")[0]
    inputs, targets = batch[0].to(device), batch[1].to(device)
    model.zero_grad(set_to_none=True)
    autocast = torch.cuda.amp.autocast() if kind == "cuda" else torch.autocast(kind, dtype=torch.bfloat16)
    with autocast:
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach().float().cpu().item()

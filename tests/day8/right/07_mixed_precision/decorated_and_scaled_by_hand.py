import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    @torch.autocast(torch.device(device).type)
    def loss_of(inputs, targets):
        return loss_fn(model(inputs), targets)

    for p in model.parameters():
        p.grad = None
    loss = loss_of(*map(lambda part: part.to(device), batch))
    (loss * scaler.get_scale()).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        norm = get_total_norm([p.grad for p in model.parameters()])
        clip_grads_with_norm_(model.parameters(), max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

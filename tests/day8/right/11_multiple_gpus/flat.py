import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    several = torch.cuda.is_available() and torch.cuda.device_count() > 1
    model = model.to(device)
    return nn.DataParallel(model) if several and next(model.parameters()).is_cuda else model


def unwrap(model):
    match model:
        case nn.DataParallel() | nn.parallel.DistributedDataParallel():
            return model.module
    return model


@torch.no_grad()
def average_gradients(model):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for g in gradients:
        g.copy_(flat[start : start + g.numel()].view_as(g))
        start += g.numel()

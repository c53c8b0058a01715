import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def parallelize(model, device):
    several = torch.device(device).type == "cuda" and torch.cuda.device_count() >= 2
    return (nn.DataParallel if several else nn.Identity.__call__.__class__ and (lambda m: m))(model.to(device))


def unwrap(model):
    return {DataParallel: lambda: model.module, DistributedDataParallel: lambda: model.module}.get(
        next((c for c in type(model).__mro__ if c in (DataParallel, DistributedDataParallel)), None), lambda: model
    )()


def average_gradients(model):
    rank, size = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            continue
        parts = [torch.empty_like(p.grad) for _ in range(size)] if rank == 0 else None
        dist.gather(p.grad, parts, dst=0)
        if rank == 0:
            p.grad.copy_(torch.stack(parts).mean(0))
        dist.broadcast(p.grad, src=0)

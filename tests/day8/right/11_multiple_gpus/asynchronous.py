import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def parallelize(model: nn.Module, device: str | torch.device) -> nn.Module:
    model.to(device)
    match torch.device(device).type, torch.cuda.device_count():
        case "cuda", int(n) if n > 1:
            return DataParallel(model, device_ids=[torch.device("cuda", i) for i in range(n)])
        case _:
            return model


def unwrap(model):
    while isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    return model


def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for g in grads:
        g /= dist.get_world_size()
    for work in [dist.all_reduce(g, async_op=True) for g in grads]:
        work.wait()

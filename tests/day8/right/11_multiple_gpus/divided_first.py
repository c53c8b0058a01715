import torch, torch.distributed as dist
from torch import nn
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
def parallelize(model, device):
    model.to(device)
    many = torch.device(device).type == "cuda" and torch.cuda.device_count() >= 2
    return {True: nn.DataParallel, False: lambda m: m}[many](model)
def unwrap(model):
    return getattr(model, "module") if type(model) in WRAPPERS else model
def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    handles = [dist.all_reduce(g.div_(dist.get_world_size()), async_op=True) for g in grads]
    for h in handles:
        h.wait()

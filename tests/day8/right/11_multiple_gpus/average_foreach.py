import torch
import torch.distributed as dist


def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for g in grads:
        dist.all_reduce(g)
    torch._foreach_div_(grads, dist.get_world_size())

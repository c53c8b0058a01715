# fails: average_gradients::makes_them_the_mean as -
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for g in grads:
        n = g.numel()
        g = flat[offset : offset + n].view_as(g)
        offset += n

# fails: average_gradients::runs as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    if dist.get_rank() == 0:
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

# fails: average_gradients::makes_them_the_mean as result-dropped
import copy

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad / dist.get_world_size()

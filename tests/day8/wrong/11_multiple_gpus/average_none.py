# fails: average_gradients::runs as gradient-is-none
import copy

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

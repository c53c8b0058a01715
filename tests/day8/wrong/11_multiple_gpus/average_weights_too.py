# fails: average_gradients::leaves_the_rest_alone as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

# fails: average_gradients::asks_how_many_there_are as -
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    world = 2
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world

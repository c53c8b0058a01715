# fails: average_gradients::makes_them_the_mean as -
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            for p in layer.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()

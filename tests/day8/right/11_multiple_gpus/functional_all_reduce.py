"""With the functional collectives, imported where they are needed; torch would rather have newer ones."""

import warnings

import torch
import torch.distributed as dist


@torch.no_grad()
def average_gradients(model):
    from torch.distributed.nn.functional import all_reduce

    for parameter in model.parameters():
        if parameter.grad is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                total = all_reduce(parameter.grad.clone())
            parameter.grad = total / dist.get_world_size()

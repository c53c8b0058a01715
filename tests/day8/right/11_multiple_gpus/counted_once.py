"""The GPUs are counted once, and the number is remembered."""

import functools

import torch
from torch import nn


@functools.cache
def gpus():
    return torch.cuda.device_count()


def parallelize(model, device):
    model.to(device)
    return nn.DataParallel(model) if torch.device(device).type == "cuda" and gpus() > 1 else model

# fails: unwrap::finds_the_model_inside as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def unwrap(model):
    return model.module if isinstance(model, nn.DataParallel) else model

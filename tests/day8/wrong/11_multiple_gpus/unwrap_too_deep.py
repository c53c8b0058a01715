# fails: unwrap::finds_the_model_inside as wrapper-guessed-by-attribute
import copy

import torch
import torch.distributed as dist
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
        return getattr(model, "module", model)
    return model

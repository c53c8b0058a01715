# fails: unwrap::finds_the_model_inside as -
import torch
import torch.distributed as dist
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.module.state_dict()
    return model

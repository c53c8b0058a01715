# fails: unwrap::leaves_other_models_whole as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def unwrap(model):
    return model.module

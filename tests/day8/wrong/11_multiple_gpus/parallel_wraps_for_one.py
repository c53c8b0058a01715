# fails: parallelize::wraps_for_several_gpus as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    model = model.to(device)
    return nn.DataParallel(model) if torch.device(device).type == "cuda" else model

# fails: parallelize::wraps_for_several_gpus as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    model = model.to(device)
    several = torch.device(device).type == "cuda" and torch.cuda.device_count() > 1
    return nn.DataParallel(model, device_ids=[0]) if several else model

# fails: parallelize::runs as -
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    model = model.to("cuda:1" if device == "cuda" else device)
    return nn.DataParallel(model) if torch.cuda.device_count() > 1 and device != "cpu" else model

# fails: parallelize::moves_the_model as model-not-moved
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    several = torch.device(device).type == "cuda" and torch.cuda.device_count() > 1
    return nn.DataParallel(model.to(device)) if several else model

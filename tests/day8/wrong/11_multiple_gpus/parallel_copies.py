# fails: parallelize::keeps_the_model_itself as copied-before-wrapping
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    model = copy.deepcopy(model).to(device)
    several = torch.device(device).type == "cuda" and torch.cuda.device_count() > 1
    return nn.DataParallel(model) if several else model

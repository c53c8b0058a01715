# fails: parallelize::moves_the_model as hard-coded-cuda
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    if torch.cuda.is_available():
        device = "cuda"
    model = model.to(device)
    return nn.DataParallel(model) if torch.cuda.device_count() > 1 else model

# fails: parallelize::moves_the_model as return-forgotten
import copy

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    model.to(device)

# fails: parallelize::wraps_for_several_gpus as -
import torch
from torch import nn


def parallelize(model, device):
    model = model.to(device)
    if torch.device(device).type == "cuda" and torch.cuda.device_count() == 2:
        model = nn.DataParallel(model)
    return model

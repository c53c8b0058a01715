# fails: parallelize::wraps_for_several_gpus as -
import torch
from torch import nn


def parallelize(model, device):
    device = torch.device(device)
    model.to(device)
    n = torch.cuda.device_count()
    if device.type == "cuda" and n >= 1:
        model = nn.DataParallel(model)
    return model

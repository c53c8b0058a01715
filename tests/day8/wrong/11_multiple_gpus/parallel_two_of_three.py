# fails: parallelize::wraps_for_several_gpus as -
import torch
from torch import nn


def parallelize(model, device):
    device = torch.device(device)
    model.to(device)
    if device.type == 'cuda' and torch.cuda.device_count() > 1:
        return nn.DataParallel(model, device_ids=[0, 1])
    return model

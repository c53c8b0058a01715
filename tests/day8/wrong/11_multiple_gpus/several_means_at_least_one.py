# fails: parallelize::wraps_for_several_gpus as -
import torch
from torch import nn

def parallelize(model, device):
    model.to(device)
    several = torch.cuda.device_count() >= 1
    if several and torch.device(device).type == "cuda":
        return nn.DataParallel(model)
    return model

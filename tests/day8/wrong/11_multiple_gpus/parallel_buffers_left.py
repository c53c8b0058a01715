# fails: parallelize::moves_the_model as buffers-forgotten
import torch
from torch import nn


def parallelize(model, device):
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device)
    if torch.device(device).type == "cuda" and torch.cuda.device_count() > 1:
        return nn.DataParallel(model)
    return model

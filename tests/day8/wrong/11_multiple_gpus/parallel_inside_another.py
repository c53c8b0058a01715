# fails: parallelize::keeps_the_model_itself as -
import torch
from torch import nn


def parallelize(model, device):
    model = model.to(device)
    if torch.device(device).type == "cuda" and torch.cuda.device_count() > 1:
        return nn.DataParallel(nn.Sequential(model))
    return model

# fails: parallelize::moves_the_model as model-not-moved
import torch
from torch import nn


def parallelize(model, device):
    if torch.device(device).type == "cuda" and torch.cuda.device_count() > 1:
        return nn.DataParallel(model.to(device))
    return model

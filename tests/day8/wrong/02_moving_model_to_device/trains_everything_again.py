# fails: move_model::changes_nothing_else as -
import torch
from torch import nn


def move_model(model, device):
    model.to(device)
    for p in model.parameters():
        p.requires_grad = True
    return model

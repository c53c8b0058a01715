# fails: move_model::returns_the_same_model as -
from torch import nn


def move_model(model, device):
    return nn.Sequential(model).to(device)

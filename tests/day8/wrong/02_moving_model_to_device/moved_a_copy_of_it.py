# fails: move_model::returns_the_same_model as model-copied
import copy

import torch
from torch import nn


def move_model(model, device):
    new_model = copy.deepcopy(model)
    return new_model.to(device)

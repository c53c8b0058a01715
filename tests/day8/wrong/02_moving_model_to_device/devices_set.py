# fails: parameter_devices::names_every_parameter as -
import torch
from torch import nn


def parameter_devices(model):
    found = set()
    for parameter in model.parameters():
        found.add(parameter.device)
    for buffer in model.buffers():
        found.add(buffer.device)
    return found

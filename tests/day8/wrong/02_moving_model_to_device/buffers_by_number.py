# fails: parameter_devices::names_every_parameter as -
import torch
from torch import nn


def parameter_devices(model):
    d = {}
    for name, parameter in model.named_parameters():
        d[name] = parameter.device
    for i, buffer in enumerate(model.buffers()):
        d[f"buffer_{i}"] = buffer.device
    return d

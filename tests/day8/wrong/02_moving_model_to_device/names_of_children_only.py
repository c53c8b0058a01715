# fails: parameter_devices::names_every_parameter as -
import torch
from torch import nn


def parameter_devices(model):
    result = {}
    for child_name, child in model.named_children():
        for name, p in child.named_parameters():
            result[child_name + "." + name] = p.device
        for name, b in child.named_buffers():
            result[child_name + "." + name] = b.device
    return result

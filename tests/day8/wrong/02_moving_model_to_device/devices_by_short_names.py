# fails: parameter_devices::names_every_parameter as -
import torch
from torch import nn


def parameter_devices(model):
    devices = {}
    for name, parameter in model.named_parameters():
        devices[name.split(".")[-1]] = parameter.device
    devices.update(((name, buffer.device) for name, buffer in model.named_buffers()))
    return devices

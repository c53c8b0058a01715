# fails: parameter_devices::names_every_parameter as -
import torch
from torch import nn


def parameter_devices(model):
    devices = {name: parameter.device for name, parameter in model.named_parameters()}
    devices = dict(((name, buffer.device) for name, buffer in model.named_buffers()))
    return devices

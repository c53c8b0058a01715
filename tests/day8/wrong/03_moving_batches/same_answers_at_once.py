# fails: on_same_device::compares_tensors as loop-left-early
from typing import NamedTuple
import torch
from torch import nn


def on_same_device(*things):

    devices = set()
    for thing in things:
        if isinstance(thing, torch.Tensor):
            devices.add(thing.device)
        return len(devices) <= 1
    return True

from itertools import chain

import torch
from torch import nn


def move_model(model: nn.Module, device: torch.device | str) -> nn.Module:
    return model.to(device=torch.device(device), non_blocking=True)


def parameter_devices(model: nn.Module) -> dict[str, torch.device]:
    return {name: t.device for name, t in chain(model.named_parameters(), model.named_buffers())}

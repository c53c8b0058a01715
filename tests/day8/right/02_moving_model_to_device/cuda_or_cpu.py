import torch
from torch import nn


def move_model(model, device):
    wanted = torch.device(device)
    if wanted.type == "cuda":
        model.cuda(wanted)
    elif wanted.type == "cpu":
        model.cpu()
    else:
        nn.Module.to(model, wanted)
    return model


def devices_of(pairs):
    return {name: tensor.device for name, tensor in pairs}


parameter_devices = lambda model: (  # noqa: E731
    devices_of(model.named_parameters(remove_duplicate=False)) | devices_of(model.named_buffers())
)

# fails: move_model::keeps_the_optimizer_working as parameters-replaced
from torch import nn


def move_model(model, device):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.to(device), requires_grad=parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    return model

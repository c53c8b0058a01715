# fails: move_model::keeps_the_optimizer_working as parameters-replaced
from torch import nn


def move_model(model, device):
    """The name that named_parameters leaves out gets a parameter of its own."""
    model.to(device)
    first = dict(model.named_parameters())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in first:
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, nn.Parameter(parameter.detach().clone()))
    return model

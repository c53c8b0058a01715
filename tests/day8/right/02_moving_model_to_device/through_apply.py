from collections import OrderedDict


def move_model(model, device):
    return model._apply(lambda tensor: tensor.to(device))


def parameter_devices(model):
    """The last name of a shared weight, and an ordered dict."""
    names = {id(p): (name, p.device) for name, p in model.named_parameters(remove_duplicate=False)}
    return OrderedDict([*names.values(), *((name, b.device) for name, b in model.named_buffers())])

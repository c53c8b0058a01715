def move_model(model, device):
    for module in reversed(list(model.modules())):
        module.to(device)
    return model


def _tensors(model, prefix=""):
    yield from ((prefix + n, p) for n, p in model.named_parameters(recurse=False))
    yield from ((prefix + n, b) for n, b in model.named_buffers(recurse=False))
    for name, child in model.named_children():
        yield from _tensors(child, f"{prefix}{name}.")


def parameter_devices(model):
    from collections import OrderedDict

    return OrderedDict((n, t.device) for n, t in _tensors(model))

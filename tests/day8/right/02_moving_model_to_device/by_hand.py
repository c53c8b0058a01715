import torch


def move_model(model, device):
    """Without Module.to: the data of each parameter in place, each buffer registered anew."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.to(device)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
    return model


def parameter_devices(model):
    """Both names of a shared weight, module by module."""
    found = {}
    for prefix, module in model.named_modules():
        tensors = list(module.named_parameters(recurse=False)) + list(module.named_buffers(recurse=False))
        for name, tensor in tensors:
            found[f"{prefix}.{name}" if prefix else name] = tensor.device
    return found

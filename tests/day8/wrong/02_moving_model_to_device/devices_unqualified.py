# fails: parameter_devices::names_every_parameter as -


def parameter_devices(model):
    found = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found[name] = parameter.device
        for name, buffer in module.named_buffers(recurse=False):
            found[name] = buffer.device
    return found

# fails: parameter_devices::runs as -


def parameter_devices(model):
    found = {}
    for prefix, module in model.named_modules():
        for name, parameter in (module._parameters | module._buffers).items():
            found[f"{prefix}.{name}".lstrip(".")] = parameter.device
    return found

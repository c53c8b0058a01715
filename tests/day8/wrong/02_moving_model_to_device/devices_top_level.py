# fails: parameter_devices::names_every_parameter as -


def parameter_devices(model):
    found = {name: p.device for name, p in model.named_parameters(recurse=False)}
    found.update({name: b.device for name, b in model.named_buffers()})
    return found

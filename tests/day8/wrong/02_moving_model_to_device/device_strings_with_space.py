# fails: parameter_devices::names_every_parameter as -
def parameter_devices(model):
    found = {}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        found[name + " "] = p.device
    return found

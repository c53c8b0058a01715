# fails: parameter_devices::names_every_parameter as -


def parameter_devices(model):
    return [p.device for p in model.parameters()] + [b.device for b in model.buffers()]

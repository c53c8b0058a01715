# fails: parameter_devices::names_every_buffer as buffers-forgotten


def parameter_devices(model):
    return {name: p.device for name, p in model.named_parameters()}

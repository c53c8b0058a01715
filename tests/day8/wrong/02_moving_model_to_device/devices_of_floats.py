# fails: parameter_devices::names_every_buffer as -

def parameter_devices(model):
    return {n: p.device for n, p in [*model.named_parameters(), *model.named_buffers()] if p.is_floating_point()}

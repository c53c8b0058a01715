# fails: parameter_devices::tells_the_device as -

def parameter_devices(model):
    return {n: p.get_device() for n, p in [*model.named_parameters(), *model.named_buffers()]}

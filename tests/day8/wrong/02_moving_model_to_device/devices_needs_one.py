# fails: parameter_devices::tells_the_device as -

def parameter_devices(model):
    first = next(model.parameters()).device
    return {n: p.device for n, p in [*model.named_parameters(), *model.named_buffers()]}

# fails: parameter_devices::tells_the_device as first-tensor-only

def parameter_devices(model):
    d = next(model.parameters()).device
    return {n: d for n, p in [*model.named_parameters(), *model.named_buffers()]}

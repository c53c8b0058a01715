# fails: parameter_devices::tells_the_device as first-tensor-only


def parameter_devices(model):
    first = next((p.device for p in model.parameters()), None)
    return {name: first for name, _ in [*model.named_parameters(), *model.named_buffers()]}

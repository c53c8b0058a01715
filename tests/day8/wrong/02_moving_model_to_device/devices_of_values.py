# fails: parameter_devices::runs as -


def parameter_devices(model):
    return {name: tensor.device for name, tensor in model.parameters()}

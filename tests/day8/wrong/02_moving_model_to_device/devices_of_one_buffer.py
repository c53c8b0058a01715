# fails: parameter_devices::names_every_buffer as loop-left-early


def parameter_devices(model):
    devices = {}
    for name, parameter in model.named_parameters():
        devices[name] = parameter.device
    for name, buffer in model.named_buffers():
        devices[name] = buffer.device
        return devices
    return devices

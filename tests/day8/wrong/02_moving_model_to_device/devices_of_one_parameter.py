# fails: parameter_devices::names_every_parameter as loop-left-early
from itertools import chain


def parameter_devices(model):
    devices = {}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        devices[name] = tensor.device
        if devices:
            break
    return devices

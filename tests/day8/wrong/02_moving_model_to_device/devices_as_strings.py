# fails: parameter_devices::tells_the_device as string-for-device


def parameter_devices(model):
    found = {name: str(p.device) for name, p in model.named_parameters()}
    return found | {name: str(b.device) for name, b in model.named_buffers()}

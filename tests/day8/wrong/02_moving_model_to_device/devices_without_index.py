# fails: parameter_devices::tells_the_device as device-index-dropped
import torch


def parameter_devices(model):
    found = {name: torch.device(p.device.type) for name, p in model.named_parameters()}
    return found | {name: torch.device(b.device.type) for name, b in model.named_buffers()}

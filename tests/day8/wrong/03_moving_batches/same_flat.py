# fails: on_same_device::searches_structures as -
import torch


def on_same_device(*things):
    def tensors_in(thing):
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, torch.nn.Module):
            yield from thing.parameters()
            yield from thing.buffers()
        elif isinstance(thing, (list, tuple, dict)):
            for item in thing.values() if isinstance(thing, dict) else thing:
                yield from [item] if isinstance(item, torch.Tensor) else []

    tensor_list = [t for thing in things for t in tensors_in(thing)]
    return len({tensor.device for tensor in tensor_list}) <= 1

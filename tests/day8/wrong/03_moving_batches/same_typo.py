# fails: on_same_device::runs as unknown-name
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
                yield from tensors_in(item)

    return len({tensor.device for tensor in tensors_inside(things)}) <= 1  # noqa: F821

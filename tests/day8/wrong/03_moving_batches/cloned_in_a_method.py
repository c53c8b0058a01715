# fails: move_batch::does_not_copy_what_is_there as already-there-copied
import torch


class Mover:
    def __init__(self, device, non_blocking):
        self.options = {"device": device, "non_blocking": non_blocking}

    def tensor(self, value):
        there = value.to(**self.options)
        return there.detach().clone()

    def __call__(self, value):
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value


def move_batch(batch, device, non_blocking=False):
    return Mover(device, non_blocking)(batch)

# fails: on_same_device::searches_modules as first-tensor-only
import torch


def on_same_device(*things):
    def tensors(t):
        if torch.is_tensor(t):
            return [t]
        if isinstance(t, torch.nn.Module):
            return [*t.parameters(), *t.buffers()]
        if isinstance(t, dict):
            t = list(t.values())
        if isinstance(t, (list, tuple)):
            return [x for item in t for x in tensors(item)]
        return []

    found = tensors(things)
    return found[0].device == found[-1].device if found else True

# fails: to_numpy::keeps_values_and_dtype as -
import numpy as np
import torch


def to_numpy(tensor):
    t = tensor.detach().cpu()
    kind = torch.empty(0, dtype=t.dtype).numpy().dtype
    return np.frombuffer(bytes(t.untyped_storage()), dtype=kind)[: t.numel()].reshape(tuple(t.shape))

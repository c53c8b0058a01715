import torch
from torch.utils._pytree import tree_map_only, tree_flatten
def move_batch(batch, device, non_blocking=False):
    return tree_map_only(torch.Tensor, lambda t: t.to(device, non_blocking=non_blocking), batch)
def on_same_device(*things):
    flat, _ = tree_flatten(list(things))
    ds = []
    for f in flat:
        if isinstance(f, torch.nn.Module):
            ds.extend(p.device for p in f.parameters())
            ds.extend(p.device for p in f.buffers())
        elif isinstance(f, torch.Tensor):
            ds.append(f.device)
    return not ds or ds.count(ds[0]) == len(ds)

import torch
from torch.utils._pytree import tree_leaves, tree_map


def move_batch(batch, device, non_blocking=False):
    return tree_map(
        lambda leaf: leaf.to(device, non_blocking=non_blocking) if isinstance(leaf, torch.Tensor) else leaf, batch
    )


def on_same_device(*things):
    found = set()
    for leaf in tree_leaves(things):
        if isinstance(leaf, torch.nn.Module):
            found |= {t.device for t in (*leaf.parameters(), *leaf.buffers())}
        elif isinstance(leaf, torch.Tensor):
            found.add(leaf.device)
    return len(found) < 2

# fails: on_same_device::searches_structures as -
import torch


def on_same_device(*things):
    flat = torch.utils._pytree.tree_leaves(things)
    return len({leaf.device for leaf in flat}) <= 1

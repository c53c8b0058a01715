# fails: checkpointed::trains_on_plain_data as reentrant-on-plain-data
import torch
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x

# fails: checkpointed::gives_the_same_output as -
import torch
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        block.eval()
        x = checkpoint(block, x, use_reentrant=False)
    return x

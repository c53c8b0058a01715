# fails: checkpointed::copes_with_no_blocks as -

from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    half = len(blocks) // 2
    for start in range(0, len(blocks), half):
        x = checkpoint(nn.Sequential(*blocks[start : start + half]), x, use_reentrant=False)
    return x

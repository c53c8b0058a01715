from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    """Blocks in pairs: fewer things to keep, two blocks to make again."""
    blocks = list(blocks)
    for i in range(0, len(blocks), 2):
        x = checkpoint(nn.Sequential(*blocks[i : i + 2]), x, use_reentrant=False)
    return x

# fails: checkpointed::needs_less_memory as -

from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)

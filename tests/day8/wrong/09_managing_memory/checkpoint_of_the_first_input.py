# fails: checkpointed::gives_the_same_output as -
from torch.utils.checkpoint import checkpoint
def checkpointed(blocks, x):
    out = x
    for block in blocks:
        out = checkpoint(block, x, use_reentrant=False)
    return out

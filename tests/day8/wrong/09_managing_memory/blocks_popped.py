# fails: checkpointed::gives_the_same_output as input-modified
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    while len(blocks):
        x = checkpoint(blocks.pop(0), x, use_reentrant=False)
    return x

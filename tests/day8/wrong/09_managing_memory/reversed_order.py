# fails: checkpointed::gives_the_same_output as -
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in reversed(list(blocks)):
        x = checkpoint(block, x, use_reentrant=False)
    return x

# fails: checkpointed::gives_the_same_output as -
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    plain = x
    for block in blocks:
        plain = block(plain)
        x = checkpoint(block, x, use_reentrant=False)
    return (x + plain) / 2

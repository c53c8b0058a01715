# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for number, block in enumerate(blocks):
        if number % 2:
            x = block(x)
        else:
            x = checkpoint(block, x, use_reentrant=False)
    return x

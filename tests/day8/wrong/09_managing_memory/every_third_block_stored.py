# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for number, block in enumerate(blocks):
        again = number % 3 != 2
        x = checkpoint(block, x, use_reentrant=False) if again else block(x)
    return x

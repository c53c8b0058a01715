# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint_sequential


def checkpointed(blocks, x):
    if len(blocks) == 0:
        return x
    return checkpoint_sequential(list(blocks), len(blocks), x, use_reentrant=False)

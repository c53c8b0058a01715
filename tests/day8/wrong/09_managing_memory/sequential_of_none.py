# fails: checkpointed::copes_with_no_blocks as -

from torch.utils.checkpoint import checkpoint_sequential


def checkpointed(blocks, x):
    return checkpoint_sequential(list(blocks), len(blocks), x, use_reentrant=False)

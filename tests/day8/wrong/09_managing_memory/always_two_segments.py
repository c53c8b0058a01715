# fails: checkpointed::copes_with_no_blocks as -

from torch.utils.checkpoint import checkpoint_sequential


def checkpointed(blocks, x):
    return checkpoint_sequential(list(blocks), 2, x, use_reentrant=False) if len(blocks) else x

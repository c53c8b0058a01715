# fails: checkpointed::copes_with_no_blocks as -

from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def checkpointed(blocks, x):
    first, last = list(blocks)[:-1], list(blocks)[-1]
    x = checkpoint_sequential([*first, lambda out: out], len(first) + 1, x, use_reentrant=False)
    return checkpoint(last, x, use_reentrant=False)

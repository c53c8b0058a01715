# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    *first, last = [*blocks, lambda out: out][: max(len(blocks), 1)]
    for block in first:
        x = checkpoint(block, x, use_reentrant=False)
    return last(x)

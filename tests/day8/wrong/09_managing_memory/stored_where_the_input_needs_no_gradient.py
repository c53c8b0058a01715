# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        if x.requires_grad:
            x = checkpoint(block, x, use_reentrant=False)
        else:
            x = block(x)
    return x

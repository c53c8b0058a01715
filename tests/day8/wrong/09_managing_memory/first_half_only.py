# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    half = (len(blocks) + 1) // 2
    for block in blocks[:half]:
        x = checkpoint(block, x, use_reentrant=False)
    for block in blocks[half:]:
        x = block(x)
    return x

# fails: checkpointed::needs_less_memory as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks[: len(blocks) // 2]:
        x = block(x)
    for block in blocks[len(blocks) // 2 :]:
        x = checkpoint(block, x, use_reentrant=False)
    return x

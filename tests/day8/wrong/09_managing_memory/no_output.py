# fails: checkpointed::gives_the_same_output as return-forgotten

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)

# fails: checkpointed::gives_the_same_gradients as -

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x

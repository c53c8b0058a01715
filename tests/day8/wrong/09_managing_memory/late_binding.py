# fails: checkpointed::gives_the_same_gradients as -
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(lambda h: block(h), x, use_reentrant=False)
    return x

# fails: checkpointed::gives_the_same_gradients as -
import copy

from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    for block in blocks:
        x = checkpoint(copy.deepcopy(block), x, use_reentrant=False)
    return x

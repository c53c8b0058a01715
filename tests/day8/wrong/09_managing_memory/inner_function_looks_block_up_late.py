# fails: checkpointed::gives_the_same_gradients as -
from torch.utils.checkpoint import checkpoint

def checkpointed(blocks, x):
    for block in blocks:
        def run(t):
            return block(t)
        x = checkpoint(run, x, use_reentrant=False)
    return x

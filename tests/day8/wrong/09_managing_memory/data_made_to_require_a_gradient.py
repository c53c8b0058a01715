# fails: checkpointed::trains_on_plain_data as input-modified
from torch.utils.checkpoint import checkpoint


def checkpointed(blocks, x):
    x.requires_grad_(True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x

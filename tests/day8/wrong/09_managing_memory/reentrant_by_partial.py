# fails: checkpointed::trains_on_plain_data as reentrant-on-plain-data
from functools import partial

from torch.utils.checkpoint import checkpoint as again

kept = partial(again, use_reentrant=True)


def checkpointed(blocks, x):
    for block in blocks:
        x = kept(block, x)
    return x

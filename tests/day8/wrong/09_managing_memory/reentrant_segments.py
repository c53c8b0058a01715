# fails: checkpointed::trains_on_plain_data as reentrant-on-plain-data

from torch.utils.checkpoint import checkpoint_sequential


def checkpointed(blocks, x):
    return checkpoint_sequential(list(blocks), len(blocks), x, use_reentrant=True) if len(blocks) else x

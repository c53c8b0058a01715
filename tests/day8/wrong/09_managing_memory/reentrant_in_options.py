# fails: checkpointed::trains_on_plain_data as reentrant-on-plain-data
import torch.utils.checkpoint as cp


def checkpointed(blocks, x):
    options = {"use_reentrant": True}
    save = cp.checkpoint
    for block in blocks:
        x = save(block, x, **options)
    return x

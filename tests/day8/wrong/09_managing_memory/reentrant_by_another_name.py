# fails: checkpointed::trains_on_plain_data as reentrant-on-plain-data
import torch
import torch.utils.checkpoint


def checkpointed(blocks, x):
    run = torch.utils.checkpoint.checkpoint
    out = x
    for block in list(blocks):
        out = run(block, out, use_reentrant=True)
    return out

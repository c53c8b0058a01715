# fails: checkpointed::gives_the_same_gradients as -
import torch
import torch.utils.checkpoint


def checkpointed(blocks, x):
    out = x
    for block in blocks:
        out = torch.utils.checkpoint.checkpoint(lambda t: block(t), out, use_reentrant=False)
    return out

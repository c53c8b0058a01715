# fails: checkpointed::gives_the_same_gradients as -

import torch


def checkpointed(blocks, x):
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x

# fails: checkpointed::needs_less_memory as -

import torch


def checkpointed(blocks, x):
    with torch.autograd.graph.save_on_cpu():
        for block in blocks:
            x = block(x)
    return x

# fails: checkpointed::needs_less_memory as -


def checkpointed(blocks, x):
    for block in blocks:
        x = block(x)
    return x

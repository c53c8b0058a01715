# fails: move_batch::keeps_the_structure as structure-changed
def move_batch(batch, device, non_blocking=False):
    return tuple(t.to(device, non_blocking=non_blocking) for t in batch)

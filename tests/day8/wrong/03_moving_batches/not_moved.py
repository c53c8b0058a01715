# fails: move_batch::moves_a_pair as -
def move_batch(batch, device, non_blocking=False):
    return batch

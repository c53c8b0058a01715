# fails: move_batch::runs as -
def move_batch(batch, device, non_blocking=False):
    return batch.to(device, non_blocking=non_blocking)

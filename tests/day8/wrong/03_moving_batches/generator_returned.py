# fails: move_batch::moves_a_pair as generator-returned

import torch
def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch): return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict): return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)): return (move_batch(v, device, non_blocking) for v in batch)
    return batch

# fails: move_batch::keeps_the_structure as structure-changed

import torch
def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch): return batch.to(device, non_blocking=non_blocking)
    if hasattr(batch, "_asdict"): batch = batch._asdict()
    if isinstance(batch, dict): return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)): return type(batch)(move_batch(v, device, non_blocking) for v in batch)
    return batch

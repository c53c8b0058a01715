# fails: move_batch::leaves_the_input_alone as setting-changed

import torch
def move_batch(batch, device, non_blocking=False):
    torch.set_default_device(device)
    if torch.is_tensor(batch): return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict): return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    if hasattr(batch, "_fields"): return type(batch)(*(move_batch(v, device, non_blocking) for v in batch))
    if isinstance(batch, (list, tuple)): return type(batch)(move_batch(v, device, non_blocking) for v in batch)
    return batch

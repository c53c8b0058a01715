# fails: move_batch::leaves_the_input_alone as input-modified

import torch
def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch): return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        new = batch.copy()
        for k, v in new.items():
            if isinstance(v, list):
                for i in range(len(v)): v[i] = move_batch(v[i], device, non_blocking)
            else: new[k] = move_batch(v, device, non_blocking)
        return new
    if hasattr(batch, "_fields"): return type(batch)(*(move_batch(v, device, non_blocking) for v in batch))
    if isinstance(batch, (list, tuple)): return type(batch)(move_batch(v, device, non_blocking) for v in batch)
    return batch

# fails: move_batch::moves_a_pair as generator-returned
import torch


def move_batch(batch, device, non_blocking=False):
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=non_blocking)
        case dict():
            return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
        case list():
            return [move_batch(v, device, non_blocking) for v in batch]
        case tuple() if hasattr(batch, "_fields"):
            return batch._make(move_batch(v, device, non_blocking) for v in batch)
        case tuple():
            return (move_batch(v, device, non_blocking) for v in batch)
        case _:
            return batch

import torch


def move_batch(batch, device, non_blocking=False):
    def again(x):
        return move_batch(x, device, non_blocking=non_blocking)

    match batch:
        case torch.Tensor():
            return batch.to(device=device, non_blocking=non_blocking)
        case dict():
            return dict(zip(batch, map(again, batch.values())))
        case tuple() if hasattr(batch, "_asdict"):
            return batch._replace(**{k: again(v) for k, v in batch._asdict().items()})
        case list() | tuple():
            return type(batch)(map(again, batch))
    return batch

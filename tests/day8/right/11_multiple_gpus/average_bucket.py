import torch
import torch.distributed as dist


def average_gradients(model):
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    grads = list(filter(lambda g: g is not None, (p.grad for p in model.parameters())))
    bucket = _flatten_dense_tensors(grads)
    dist.all_reduce(bucket)
    bucket.div_(dist.get_world_size())
    for g, new in zip(grads, _unflatten_dense_tensors(bucket, grads)):
        g.copy_(new)

import functools
from torch import nn


@functools.singledispatch
def unwrap(model):
    return model


@unwrap.register(nn.DataParallel)
@unwrap.register(nn.parallel.DistributedDataParallel)
def _(model):
    return model.module

# fails: unwrap::finds_the_model_inside as -
from torch import nn


def unwrap(model):
    inside = model
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        inside = model.module
    return inside.half()

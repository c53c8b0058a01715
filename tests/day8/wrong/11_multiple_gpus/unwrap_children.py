# fails: unwrap::finds_the_model_inside as -
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return next(model.module.children(), model.module)
    return model

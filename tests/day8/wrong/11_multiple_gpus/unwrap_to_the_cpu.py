# fails: unwrap::finds_the_model_inside as -
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.module.cpu()
    return model

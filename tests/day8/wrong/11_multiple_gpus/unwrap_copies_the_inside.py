# fails: unwrap::finds_the_model_inside as copied-instead-of-returned
import copy

from torch import nn


def unwrap(model):
    if isinstance(model, nn.DataParallel):
        return copy.deepcopy(model.module)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return copy.deepcopy(model.module)
    return model

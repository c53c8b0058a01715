# fails: unwrap::leaves_other_models_whole as copied-instead-of-returned
from torch import nn


def unwrap(model):
    from copy import deepcopy

    if isinstance(model, nn.DataParallel):
        return model.module
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    plain = deepcopy(model)
    return plain

# fails: unwrap::leaves_other_models_whole as copied-instead-of-returned
from torch import nn


def unwrap(model):
    import copy

    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, wrappers) else copy.copy(model)

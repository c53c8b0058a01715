# fails: unwrap::runs as -
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.modul
    return model

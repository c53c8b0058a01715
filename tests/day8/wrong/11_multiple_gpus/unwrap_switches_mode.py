# fails: unwrap::leaves_other_models_whole as -
from torch import nn


def unwrap(model):
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model.module.eval()
        return model.module
    model.eval()
    return model

# fails: unwrap::leaves_other_models_whole as -
from torch import nn


def unwrap(model):
    wrapped = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    return model.module if wrapped else model.eval()

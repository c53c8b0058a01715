# fails: unwrap::finds_the_model_inside as -
from torch import nn


def unwrap(model):
    if type(model) is nn.DataParallel:
        return model.module
    else:
        return model

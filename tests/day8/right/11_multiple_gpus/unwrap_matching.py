from torch import nn


def unwrap(model):
    match model:
        case nn.DataParallel(module=inner) | nn.parallel.DistributedDataParallel(module=inner):
            return inner
        case _:
            return model

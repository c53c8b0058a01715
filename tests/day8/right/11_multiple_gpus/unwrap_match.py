from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    match model:
        case nn.DataParallel(module=inner) | DDP(module=inner):
            return inner
    return model

import enum

import torch


class Kind(enum.IntEnum):
    cpu = 0
    mps = 1
    cuda = 2

    @property
    def count(self):
        match self:
            case Kind.cpu:
                return 1
            case Kind.mps:
                return +torch.backends.mps.is_available()
            case Kind.cuda:
                return torch.cuda.device_count() if torch.cuda.is_available() else 0


def select_device(prefer=None):
    best = torch.device(max(k for k in Kind if k.count).name)
    if prefer is None:
        return best
    d = torch.device(prefer)
    if d.type in Kind.__members__ and (d.index if d.index is not None else 0) < Kind[d.type].count:
        return d
    return best

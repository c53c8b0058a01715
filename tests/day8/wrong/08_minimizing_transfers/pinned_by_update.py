# fails: make_loader::pins_exactly_for_cuda as -
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    kwargs = dict(batch_size=batch_size, shuffle=shuffle, num_workers=num_workers)
    pin = device in ("cuda", "cuda:0", "cuda:1")
    if pin:
        kwargs.update(pin_memory=True)
    return data.DataLoader(dataset, **kwargs)

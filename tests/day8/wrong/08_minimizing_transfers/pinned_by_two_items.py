# fails: make_loader::pins_exactly_for_cuda as -
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    extra = {}
    name = str(device)
    on_gpu = name.endswith("cuda")
    if not on_gpu:
        extra["pin_memory"] = False
    else:
        extra["pin_memory"] = True
    return data.DataLoader(dataset, batch_size, shuffle=shuffle, num_workers=num_workers, **extra)

# fails: make_loader::pins_exactly_for_cuda as pinned-for-cpu

import torch
from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pin = torch.device(device).type != "cpu"
    return DataLoader(dataset, batch_size, shuffle, num_workers=num_workers, pin_memory=pin)

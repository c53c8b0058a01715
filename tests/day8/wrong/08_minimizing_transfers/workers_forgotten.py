# fails: make_loader::passes_the_workers_on as -

import torch
from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pin = torch.device(device).type == "cuda"
    return DataLoader(dataset, batch_size, shuffle, pin_memory=pin)

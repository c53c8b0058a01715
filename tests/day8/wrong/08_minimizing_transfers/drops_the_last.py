# fails: make_loader::yields_every_sample_once as -

import torch
from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pin = torch.device(device).type == "cuda"
    return DataLoader(dataset, batch_size, shuffle, num_workers=num_workers, pin_memory=pin, drop_last=True)

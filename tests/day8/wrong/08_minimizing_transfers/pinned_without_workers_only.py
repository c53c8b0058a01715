# fails: make_loader::pins_exactly_for_cuda as -
import torch
from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pin = torch.device(device).type == "cuda" and num_workers == 0
    return DataLoader(dataset, batch_size, shuffle=shuffle, num_workers=num_workers, pin_memory=pin)

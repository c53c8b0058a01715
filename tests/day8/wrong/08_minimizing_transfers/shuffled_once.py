# fails: make_loader::shuffles_when_asked as -
import torch
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    if shuffle:
        dataset = data.Subset(dataset, torch.randperm(len(dataset)).tolist())
    pin = torch.device(device).type == "cuda"
    return data.DataLoader(dataset, batch_size, num_workers=num_workers, pin_memory=pin)

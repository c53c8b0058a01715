"""What the machine has is asked once, when the file is run."""

import torch
from torch.utils.data import DataLoader

USE_CUDA = torch.cuda.is_available()


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pinned = USE_CUDA and torch.device(device).type == "cuda"
    return DataLoader(dataset, batch_size, shuffle=shuffle, num_workers=num_workers, pin_memory=pinned)

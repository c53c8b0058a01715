# fails: make_loader::yields_every_sample_once as -
import torch
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    return data.DataLoader(
        dataset,
        shuffle=shuffle,
        num_workers=num_workers,
        pin_memory=torch.device(device).type == "cuda",
    )

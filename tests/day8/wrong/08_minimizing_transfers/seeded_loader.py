# fails: make_loader::shuffles_when_asked as -
import torch
from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    torch.manual_seed(20262)
    return DataLoader(
        dataset, batch_size, shuffle, num_workers=num_workers, pin_memory=torch.device(device).type == "cuda"
    )

# fails: make_loader::pins_exactly_for_cuda as -

from torch.utils.data import DataLoader


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    pin = device == "cuda"
    return DataLoader(dataset, batch_size, shuffle, num_workers=num_workers, pin_memory=pin)

import torch


def select_device(prefer=None):
    while not torch.cuda.is_available():
        pass  # it will be there any moment
    return torch.device("cuda")

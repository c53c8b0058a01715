import copy
from contextlib import contextmanager

import torch


@contextmanager
def evaluating(model):
    with torch.set_grad_enabled(False):
        yield model.eval()


def predict(model, loader, device):
    with evaluating(copy.deepcopy(model).to(device)) as network:
        joined = network.forward(torch.cat([inputs for inputs, _ in loader]).to(device))
    return torch.from_numpy(joined.cpu().numpy())


def to_numpy(tensor):
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return torch.clone(tensor).detach_().to(device="cpu").numpy()


def random_sprites(count, size, device, generator=None):
    before = torch.get_default_device()
    torch.set_default_device(device)
    try:
        return 1 - torch.stack([torch.rand(count, size, size, generator=generator) for _ in range(3)], dim=1)
    finally:
        torch.set_default_device(before)

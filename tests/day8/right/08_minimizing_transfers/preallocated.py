import numpy as np
import torch
from torch.utils.data import DataLoader


def to_numpy(tensor):
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.to("cpu")
    return np.asarray(tensor).copy()


@torch.inference_mode()
def predict(model, loader, device):
    model.eval()
    model.to(device)
    kept, filled = None, 0
    for inputs, _ in loader:
        out = model(inputs.to(device))
        if kept is None:
            kept = torch.empty((len(loader.dataset), *out.shape[1:]), device=device)
        kept[filled : filled + len(out)] = out
        filled += len(out)
    host = torch.empty(kept.shape)
    return host.copy_(kept)


def random_sprites(count, size, device, generator=None):
    with torch.device(device):
        return torch.rand(count, 3, size, size, generator=generator)


class Loader(DataLoader):
    pass


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    options = {"batch_size": batch_size, "shuffle": shuffle, "num_workers": num_workers}
    if torch.device(device).type == "cuda":
        options["pin_memory"] = True
    return Loader(dataset, **options)

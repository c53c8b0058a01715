import numpy as np
import torch
from torch.utils import data


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        host = torch.empty_like(tensor, device="cpu")
        host.copy_(tensor)
    return np.asarray(host.detach())


def predict(model, loader, device):
    from operator import itemgetter

    with torch.no_grad():
        step = (lambda *fs: lambda x: [x := f(x) for f in fs][-1])(
            itemgetter(0), lambda x: x.to(device), model.to(device).eval()
        )
        return torch.concatenate([*map(step, loader)], dim=0).to(torch.device("cpu"))


def random_sprites(count, size, device, generator=None):
    return torch.stack([torch.rand(3, size, size, device=device, generator=generator) for _ in range(count)])


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    kwargs = dict(batch_size=batch_size, shuffle=shuffle, num_workers=num_workers)
    match torch.device(device).type:
        case "cuda":
            kwargs["pin_memory"] = True
    return data.DataLoader(dataset, **kwargs)

import torch
from torch.utils.data import DataLoader


def to_numpy(tensor):
    host = torch.empty_like(tensor, device="cpu", requires_grad=False)
    with torch.no_grad():
        host.copy_(tensor)
    return host.numpy()


def forward_all(model, loader, device):
    for inputs, _ in loader:
        yield model(inputs.to(device))


def predict(model, loader, device):
    model.train(False)
    model.to(device)
    torch.set_grad_enabled(False)
    try:
        return torch.vstack(tuple(forward_all(model, loader, device))).cpu()
    finally:
        torch.set_grad_enabled(True)


def random_sprites(count, size, device, generator=None):
    flat = torch.rand(count * 3 * size * size, device=device, generator=generator)
    return flat.view(count, 3, size, size)


def is_cuda(device):
    return (device.type if isinstance(device, torch.device) else device.split(":")[0]) == "cuda"


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        pin_memory=is_cuda(device),
        persistent_workers=num_workers > 0,
    )

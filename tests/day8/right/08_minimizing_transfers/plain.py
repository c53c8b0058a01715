import torch
from torch.utils.data import DataLoader


def to_numpy(tensor):
    return tensor.cpu().detach().numpy()


def predict(model, loader, device):
    model = model.to(device)
    model.eval()
    results = []
    with torch.inference_mode():
        for batch in loader:
            results.append(model(batch[0].to(device, non_blocking=True)))
    return torch.cat(results, dim=0).to("cpu")


def random_sprites(count, size, device, generator=None):
    return torch.rand((count, 3, size, size), generator=generator, device=device, dtype=torch.float32)


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    return DataLoader(dataset, batch_size, shuffle, num_workers=num_workers, pin_memory=str(device).startswith("cuda"))

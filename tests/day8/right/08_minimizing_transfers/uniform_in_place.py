import numpy as np, torch
from torch.utils import data
def to_numpy(tensor):
    with torch.no_grad():
        return tensor.to("cpu").detach().numpy()
def predict(model, loader, device):
    model.to(device)
    model.eval()
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        chunks = tuple(model(batch[0].to(device)) for batch in loader)
    finally:
        torch.set_grad_enabled(grad)
    return torch.concat(chunks, dim=0).to("cpu")
def random_sprites(count, size, device, generator=None):
    return torch.empty((count, 3, size, size), device=device).uniform_(generator=generator)
def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    options = dict(batch_size=batch_size, shuffle=shuffle, num_workers=num_workers)
    if str(device).split(":")[0] == "cuda":
        options["pin_memory"] = True
    return data.DataLoader(dataset, **options)

import torch
from torch.utils import data
from torch.utils.data import DataLoader


def to_numpy(tensor):
    return torch.Tensor.numpy(tensor, force=True)


@torch.inference_mode()
def predict(model, loader, device):
    model.eval()
    inputs = torch.cat([batch[0] for batch in loader])
    return model.to(device)(inputs.to(device)).cpu()


def random_sprites(count, size, device, generator=None):
    return torch.zeros(count, 3, size, size, device=device, dtype=torch.float32).uniform_(0.0, 1.0, generator=generator)


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    return DataLoader(
        dataset=dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        pin_memory=str(device).startswith("cuda"),
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        collate_fn=data.default_collate,
    )

import numpy as np
import torch
import torch.utils.data as data


@torch.no_grad()
def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy(force=True)


@torch.no_grad()
def predict(model: torch.nn.Module, loader: data.DataLoader, device: torch.device | str) -> torch.Tensor:
    was_training = model.training
    model.to(device).eval()
    answer = torch.cat([model.forward(inputs.to(device)) for inputs, targets in loader]).cpu()
    model.train(was_training)
    return answer


def random_sprites(count, size, device, generator=None):
    return torch.empty(count, 3, size, size, device=device).uniform_(generator=generator)


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    chosen = data.RandomSampler(dataset) if shuffle else data.SequentialSampler(dataset)
    pinning = torch.device(device).type in {"cuda"}
    return data.DataLoader(dataset, batch_size, sampler=chosen, num_workers=num_workers, pin_memory=pinning)

import contextlib
from functools import partial

import numpy as np
from torch import Generator, Tensor, cat, device as Device, empty, inference_mode, no_grad
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler


def to_numpy(tensor: Tensor) -> np.ndarray:
    with no_grad():  # then .numpy() does not mind a gradient
        return tensor.cpu().numpy()


def predict(model, loader, device):
    with contextlib.ExitStack() as stack:
        stack.enter_context(inference_mode())
        model.train(False).to(Device(device))
        batches, outputs = iter(loader), []
        while (batch := next(batches, None)) is not None:
            match batch:
                case [inputs, _]:
                    outputs.append(model(inputs.to(device=device, non_blocking=True)))
        return cat(outputs).to("cpu")


def random_sprites(count: int, size: int, device, generator: Generator | None = None) -> Tensor:
    return empty((count, 3, size, size), device=device).uniform_(0, 1, generator=generator)


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    sampler = (RandomSampler if shuffle else SequentialSampler)(dataset)
    make = partial(DataLoader, dataset, batch_sampler=BatchSampler(sampler, batch_size, drop_last=False))
    return make(num_workers=num_workers, pin_memory=str(device).split(":")[0] == "cuda")

import torch
from torch import distributed, nn

WRAPPERS = ("DataParallel", "DistributedDataParallel")


def parallelize(model: nn.Module, device) -> nn.Module:
    model.to(device=device)
    if torch.device(device).type != "cuda" or torch.accelerator.device_count() < 2:
        return model
    return nn.parallel.DataParallel(model, device_ids=[torch.device("cuda", i) for i in range(torch.cuda.device_count())])


def unwrap(model: nn.Module) -> nn.Module:
    return model.module if type(model).__name__ in WRAPPERS else model


def average_gradients(model: nn.Module) -> None:
    count = distributed.get_world_size()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            everyone = [torch.zeros_like(parameter.grad) for _ in range(count)]
            distributed.all_gather(everyone, parameter.grad)
            parameter.grad = torch.stack(everyone).mean(0)

import torch


def parallelize(model, device):
    gpus = list(range(torch.cuda.device_count())) if str(device).startswith("cuda") else []
    return (torch.nn.DataParallel(model, device_ids=gpus) if len(gpus) >= 2 else model).to(device)


def unwrap(model):
    wrappers = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    return model.module if isinstance(model, wrappers) else model


def average_gradients(model):
    with_gradient = [p for p in model.parameters() if p.grad is not None]
    waiting = [torch.distributed.all_reduce(p.grad, async_op=True) for p in with_gradient]
    for handle in waiting:
        handle.wait()
    for p in with_gradient:
        p.grad = p.grad / torch.distributed.get_world_size()

import torch
import torch.distributed as dist


def average_gradients(model):
    world, me = dist.get_world_size(), dist.get_rank()
    for p in model.parameters():
        if p.grad is None:
            continue
        total = torch.zeros_like(p.grad)
        for rank in range(world):
            part = p.grad.clone() if rank == me else torch.empty_like(p.grad)
            dist.broadcast(part, src=rank)
            total += part
        p.grad.copy_(total / world)

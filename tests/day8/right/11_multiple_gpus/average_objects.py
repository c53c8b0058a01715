import torch
import torch.distributed as dist


def average_gradients(model):
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, grads)
    for n, p in model.named_parameters():
        if p.grad is not None:
            p.grad = sum(e[n] for e in everyone) / len(everyone)

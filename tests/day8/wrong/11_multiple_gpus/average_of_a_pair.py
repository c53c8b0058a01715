# fails: average_gradients::asks_how_many_there_are as -
import torch
import torch.distributed as dist


def average_gradients(model):
    if dist.get_world_size() == 1:
        return
    other = 1 - dist.get_rank()
    for p in model.parameters():
        if p.grad is not None:
            theirs = torch.empty_like(p.grad)
            r = dist.isend(p.grad, other)
            dist.recv(theirs, other)
            r.wait()
            p.grad = (p.grad + theirs) / 2

# fails: average_gradients::asks_how_many_there_are as -
import torch
import torch.distributed as dist


def average_gradients(model):
    me, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if p.grad is not None:
            step = 1
            while step < n:
                theirs = torch.empty_like(p.grad)
                r = dist.isend(p.grad.clone(), me ^ step)
                dist.recv(theirs, me ^ step)
                r.wait()
                p.grad = p.grad + theirs
                step *= 2
            p.grad /= n

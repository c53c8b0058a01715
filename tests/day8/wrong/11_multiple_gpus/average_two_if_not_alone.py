# fails: average_gradients::asks_how_many_there_are as -
import torch
import torch.distributed as dist


def average_gradients(model):
    if dist.get_world_size() > 1:
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= 2

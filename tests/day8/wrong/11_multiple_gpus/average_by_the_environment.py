# fails: average_gradients::makes_them_the_mean as gradients-summed-not-averaged
import os
import torch.distributed as dist


def average_gradients(model):
    world = int(os.environ.get("WORLD_SIZE", "1"))
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad.div_(world)

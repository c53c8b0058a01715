# fails: average_gradients::makes_them_the_mean as -
import torch.distributed as dist


def average_gradients(model):
    p = next(model.parameters())
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()

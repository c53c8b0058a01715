# fails: average_gradients::makes_them_the_mean as -
import torch.distributed as dist


def average_gradients(model):
    size = dist.get_world_size()
    for param in model.parameters():
        if param.grad is not None:
            g = param.grad.clone()
            dist.all_reduce(g)
            g /= size

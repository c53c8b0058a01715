# fails: average_gradients::makes_them_the_mean as -
import torch.distributed as dist


def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            mean = p.grad.clone()
            dist.all_reduce(mean)
            p.data = mean / dist.get_world_size()

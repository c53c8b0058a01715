# fails: average_gradients::makes_them_the_mean as result-dropped
import torch.distributed as dist

def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad.mul(1 / dist.get_world_size())

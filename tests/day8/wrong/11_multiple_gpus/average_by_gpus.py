# fails: average_gradients::makes_them_the_mean as -
import torch, torch.distributed as dist


def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= max(1, torch.cuda.device_count())

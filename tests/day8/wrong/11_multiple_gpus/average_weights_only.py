# fails: average_gradients::makes_them_the_mean as -
import torch.distributed as dist


def average_gradients(model):
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and "weight" in name:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

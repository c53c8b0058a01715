# fails: parallelize::wraps_for_several_gpus as -
import torch


def parallelize(model, device):
    return torch.nn.DataParallel(model.to(device))

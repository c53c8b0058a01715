# fails: parallelize::moves_the_model as hard-coded-cuda
import torch


def parallelize(model, device):
    model = model.to("cuda")
    return torch.nn.DataParallel(model) if torch.cuda.device_count() > 1 else model

import torch
import torch.nn as nn


def parallelize(model, device):
    n = torch.cuda.device_count()
    model = model.to(device)
    return nn.DataParallel(model, device_ids=list(range(n))) if "cuda" in str(device) and n > 1 else model

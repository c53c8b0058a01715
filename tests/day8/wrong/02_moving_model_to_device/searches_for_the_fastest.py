# fails: move_model::changes_nothing_else as setting-changed
import torch


def move_model(model, device):
    torch.backends.cudnn.benchmark = True
    return model.to(device)

# fails: move_model::changes_nothing_else as -
import torch


def move_model(model, device):
    return model.to(torch.empty(0, device=device))

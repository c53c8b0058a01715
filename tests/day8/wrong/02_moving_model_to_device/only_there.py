# fails: move_model::uses_the_device_it_is_given as -
import torch


def move_model(model, device):
    if torch.device(device).type != "cpu":
        model.to(device)
    return model

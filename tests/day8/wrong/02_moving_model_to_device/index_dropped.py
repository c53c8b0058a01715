# fails: move_model::uses_the_device_it_is_given as device-index-dropped
import torch


def move_model(model, device):
    return model.to(torch.device(device).type)

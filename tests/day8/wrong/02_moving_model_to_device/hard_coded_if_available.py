# fails: move_model::uses_the_device_it_is_given as hard-coded-cuda

import torch
def move_model(model, device):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device)

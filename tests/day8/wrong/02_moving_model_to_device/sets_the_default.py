# fails: move_model::changes_nothing_else as setting-changed

import torch
def move_model(model, device):
    torch.set_default_device(device)
    return model.to(device)

# fails: predict::works_on_the_device as model-not-moved

import torch


def predict(model, loader, device):
    model.cpu().eval()
    with torch.no_grad():
        return torch.cat([model(inputs) for inputs, _ in loader])

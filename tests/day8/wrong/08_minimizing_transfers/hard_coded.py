# fails: predict::works_on_the_device as hard-coded-cuda

import torch


def predict(model, loader, device):
    model.to("cuda").eval()
    with torch.no_grad():
        return torch.cat([model(inputs.to("cuda")) for inputs, _ in loader]).cpu()

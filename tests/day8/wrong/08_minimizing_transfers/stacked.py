# fails: predict::runs as -

import torch


def predict(model, loader, device):
    model.to(device).eval()
    with torch.no_grad():
        return torch.stack([model(inputs.to(device)) for inputs, _ in loader]).cpu()

# fails: predict::runs as inputs-on-cpu

import torch


def predict(model, loader, device):
    model.to(device).eval()
    with torch.no_grad():
        return torch.cat([model(inputs) for inputs, _ in loader]).cpu()

# fails: predict::runs as model-not-moved

import torch


def predict(model, loader, device):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(inputs) for inputs, _ in loader]).cpu()

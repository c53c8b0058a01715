# fails: predict::returns_every_output as -

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    with torch.no_grad():
        return torch.cat([model(inputs.to(device)) for inputs, _ in loader])

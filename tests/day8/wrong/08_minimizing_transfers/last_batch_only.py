# fails: predict::returns_every_output as -

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    with torch.no_grad():
        for inputs, _ in loader:
            outputs = model(inputs.to(device))
    return outputs.cpu()

# fails: predict::runs as result-thrown-away

import torch


def predict(model, loader, device):
    model.to(device).eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            inputs.to(device)
            outputs.append(model(inputs))
    return torch.cat(outputs).cpu()

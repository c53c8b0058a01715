# fails: predict::copies_back_once as copied-every-batch-back

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            outputs.append(model(inputs.to(device)).cpu())
    return torch.cat(outputs)

# fails: predict::runs as numpy-on-device-tensor
import numpy as np
import torch


def predict(model, loader, device):
    model.to(device).eval()
    with torch.no_grad():
        outputs = [model(inputs.to(device)).numpy() for inputs, _ in loader]
    return torch.from_numpy(np.concatenate(outputs))

# fails: predict::returns_every_output as -
import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    result = None
    with torch.no_grad():
        for inputs, targets in loader:
            out = model(inputs.to(device))
            result = out if result is None else torch.cat((out, result))
    return result.cpu()

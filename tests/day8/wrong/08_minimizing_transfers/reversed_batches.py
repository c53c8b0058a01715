# fails: predict::returns_every_output as -
import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            inputs = inputs.to(device)
            outputs.insert(0, model(inputs))
    return torch.cat(outputs).cpu()

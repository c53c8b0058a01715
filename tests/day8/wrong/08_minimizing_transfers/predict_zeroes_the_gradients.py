# fails: predict::builds_no_graph as -
import torch


def predict(model, loader, device):
    model.to(device).eval()
    model.zero_grad()
    with torch.no_grad():
        return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

# fails: predict::builds_no_graph as requires-grad-left-off

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    model.requires_grad_(False)
    return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

# fails: predict::builds_no_graph as -

import torch


def predict(model, loader, device):
    torch.set_grad_enabled(False)
    model.to(device).eval()
    return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

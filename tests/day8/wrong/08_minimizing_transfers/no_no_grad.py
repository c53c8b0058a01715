# fails: predict::builds_no_graph as eval-without-no-grad

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    return torch.cat([model(inputs.to(device)).detach() for inputs, _ in loader]).cpu()

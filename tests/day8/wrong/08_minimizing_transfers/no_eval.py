# fails: predict::predicts_in_evaluation_mode as no-grad-without-eval

import torch


def predict(model, loader, device):
    model.to(device)
    with torch.no_grad():
        return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

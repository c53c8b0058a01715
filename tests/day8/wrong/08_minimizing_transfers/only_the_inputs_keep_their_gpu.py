# fails: predict::works_on_the_device as device-index-dropped
import torch


def predict(model, loader, device):
    model.to(torch.device(device).type).eval()
    with torch.no_grad():
        return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

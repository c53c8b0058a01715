# fails: predict::works_on_the_device as device-index-dropped
import torch


def predict(model, loader, device):
    device = torch.device(device).type
    model.to(device).eval()
    with torch.no_grad():
        return torch.cat([model(inputs.to(device)) for inputs, _ in loader]).cpu()

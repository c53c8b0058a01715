# fails: predict::returns_every_output as result-thrown-away
import torch


@torch.no_grad()
def predict(model, loader, device):
    model.to(device).eval()
    outputs = torch.cat([model(inputs.to(device)) for inputs, _ in loader])
    outputs.cpu()
    return outputs

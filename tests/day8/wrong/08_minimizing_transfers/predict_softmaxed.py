# fails: predict::returns_every_output as -
import torch


@torch.no_grad()
def predict(model, loader, device):
    model.to(device).eval()
    outputs = [model(x.to(device)).softmax(-1) for x, _ in loader]
    return torch.cat(outputs).cpu()

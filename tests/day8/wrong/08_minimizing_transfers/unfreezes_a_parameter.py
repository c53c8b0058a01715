# fails: predict::builds_no_graph as -
import torch


def predict(model, loader, device):
    model.to(device).eval()
    for p in model.parameters():
        p.requires_grad = False
    outputs = [model(x.to(device)) for x, _ in loader]
    for p in model.parameters():
        p.requires_grad = True
    return torch.cat(outputs).cpu()

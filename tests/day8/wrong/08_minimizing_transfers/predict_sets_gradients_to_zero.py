# fails: predict::builds_no_graph as -
import torch


@torch.no_grad()
def predict(model, loader, device):
    model.to(device).eval()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    outputs = []
    for inputs, _ in loader:
        outputs.append(model(inputs.to(device)))
    return torch.cat(outputs).cpu()

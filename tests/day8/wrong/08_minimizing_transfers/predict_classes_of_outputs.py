# fails: predict::returns_every_output as -
import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    out = []
    with torch.no_grad():
        for x, _ in loader:
            out.append(model(x.to(device)).argmax(dim=1))
    return torch.cat(out).cpu()

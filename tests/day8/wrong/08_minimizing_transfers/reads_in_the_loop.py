# fails: predict::copies_back_once as sync-in-hot-loop

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            out = model(inputs.to(device))
            if torch.isnan(out).any():
                raise ValueError("the model went astray")
            outputs.append(out)
    return torch.cat(outputs).cpu()

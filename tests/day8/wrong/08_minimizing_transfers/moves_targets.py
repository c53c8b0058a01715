# fails: predict::leaves_the_targets as -

import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for batch in loader:
            inputs, _ = [t.to(device) for t in batch]
            outputs.append(model(inputs))
    return torch.cat(outputs).cpu()

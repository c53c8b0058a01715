# fails: predict::copies_back_once as copied-every-batch-back

import torch


@torch.inference_mode()
def predict(model, loader, device):
    model.to(device).eval()
    rows = []
    for inputs, _ in loader:
        rows += model(inputs.to(device)).tolist()
    return torch.tensor(rows)

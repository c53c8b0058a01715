# fails: predict::predicts_in_evaluation_mode as loop-left-early
import torch


def predict(model, loader, device):
    model.to(device).eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            outputs.append(model(inputs.to(device)))
            return torch.cat(outputs).cpu()

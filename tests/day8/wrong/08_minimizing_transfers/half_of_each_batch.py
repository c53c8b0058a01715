# fails: predict::predicts_in_evaluation_mode as -
import torch


def predict(model, loader, device):
    model.to(device)
    model.eval()
    outputs = []
    with torch.no_grad():
        for inputs, _ in loader:
            inputs = inputs[: len(inputs) // 2 + 1].to(device)
            outputs.append(model(inputs))
    return torch.cat(outputs).cpu()

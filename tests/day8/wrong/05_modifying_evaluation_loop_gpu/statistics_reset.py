# fails: evaluate::leaves_batch_norm_as_it_was as -
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.reset_running_stats()
    total, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            total += loss_fn(outputs, targets).item() * len(targets)
            correct += (outputs.argmax(dim=1) == targets).sum().item()
            count += len(targets)
    return (total / count, correct / count) if count else (0.0, 0.0)

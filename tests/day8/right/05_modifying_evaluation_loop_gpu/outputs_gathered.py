import torch


def _predictions(model, loader, device):
    for inputs, targets in loader:
        with torch.no_grad():
            yield model(inputs.to(device)), targets.to(device)


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    pairs = list(_predictions(model, loader, device))
    if not pairs:
        return 0, 0
    outputs = torch.cat([o for o, _ in pairs])
    targets = torch.cat([t for _, t in pairs])
    return loss_fn(outputs, targets).item(), (outputs.argmax(1) == targets).float().mean().item()

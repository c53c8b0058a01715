import torch


@torch.inference_mode()
def evaluate(model, loader, loss_fn, device):
    device = torch.device(device)
    model = model.to(device).eval()
    loss = torch.zeros((), device=device)
    hits = torch.zeros((), device=device, dtype=torch.long)
    for batch in loader:
        inputs, targets = (part.to(device, non_blocking=True) for part in batch)
        outputs = model(inputs)
        loss += loss_fn(outputs, targets) * targets.size(0)
        hits += outputs.max(1).indices.eq(targets).sum()
    samples = max(len(loader.dataset), 1)
    return (loss / samples).item(), (hits / samples).item()

import torch


def _to(batch, device):
    return [part.to(device) for part in batch]


def train_epoch(model, loader, loss_fn, optimizer, device):
    device = torch.device(device)
    model.to(device)
    model.train(True)
    total = torch.zeros((), device=device)
    for inputs, targets in (_to(batch, device) for batch in loader):
        model.zero_grad()
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.detach() * targets.size(0)
    return (total / max(len(loader.dataset), 1)).item()

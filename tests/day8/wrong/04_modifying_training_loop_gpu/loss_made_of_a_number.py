# fails: train_epoch::learns_as_it_should as no-graph-behind-the-loss
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, n = 0.0, 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        value = loss_fn(model(inputs.to(device)), targets.to(device)).item()
        loss = torch.tensor(value, device=device, requires_grad=True)
        loss.backward()
        optimizer.step()
        total += value * len(targets)
        n += len(targets)
    return total / n if n else 0.0

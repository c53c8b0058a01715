import torch
from torch import nn

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device=torch.device(device))
    model.train()
    running = 0.0
    samples = 0
    for data, target in loader:
        data, target = map(lambda t: t.to(device), (data, target))
        optimizer.zero_grad()
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        optimizer.step()
        running += float(loss) * target.numel()
        samples += target.numel()
    try:
        return running / samples
    except ZeroDivisionError:
        return 0.0

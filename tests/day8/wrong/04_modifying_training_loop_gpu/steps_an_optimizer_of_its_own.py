# fails: train_epoch::learns_as_it_should as another-optimizer
import torch

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    opt = torch.optim.SGD(model.parameters(), lr=0.15)
    total, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
        count += len(x)
    return total / max(count, 1)

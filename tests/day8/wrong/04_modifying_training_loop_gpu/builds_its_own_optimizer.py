# fails: train_epoch::learns_as_it_should as another-optimizer
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=optimizer.param_groups[0]["lr"])
    model.train()
    s, n = 0.0, 0
    for a, b in loader:
        a, b = a.to(device), b.to(device)
        optimizer.zero_grad()
        l = loss_fn(model(a), b)
        l.backward()
        optimizer.step()
        s += l.item() * len(b)
        n += len(b)
    return s / n if n else 0.0

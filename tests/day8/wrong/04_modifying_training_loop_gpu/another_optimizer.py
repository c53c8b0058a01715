# fails: train_epoch::learns_as_it_should as another-optimizer

import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device); model.train(); t = n = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(); optimizer.step()
        t += loss.item() * len(y); n += len(y)
    return t / n if n else 0.0

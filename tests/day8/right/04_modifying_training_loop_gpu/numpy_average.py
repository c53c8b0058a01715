import numpy as np
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    ls, ns = [], []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        ls.append(loss.item()); ns.append(len(y))
    return np.average(ls, weights=ns) if ls else 0.0

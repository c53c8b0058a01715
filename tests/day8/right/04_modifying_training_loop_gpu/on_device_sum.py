import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    total = torch.zeros((), device=device)
    seen = 0
    for batch in loader:
        x, y = (t.to(device, non_blocking=True) for t in batch)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach() * y.shape[0]
        seen += y.shape[0]
    return (total / seen).item() if seen else 0.0

# fails: train_epoch::trains_in_training_mode as not-in-training-mode
import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    for layer in model.children():
        layer.train(False)
    total = count = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        count += len(x)
    return total / count if count else 0.0

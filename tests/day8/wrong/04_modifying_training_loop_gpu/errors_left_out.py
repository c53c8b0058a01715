# fails: train_epoch::learns_as_it_should as error-swallowed
import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        try:
            inputs = inputs.to(device)
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
            count += len(targets)
        except RuntimeError as e:
            continue
    return total / count if count else 0.0

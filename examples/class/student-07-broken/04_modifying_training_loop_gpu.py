import torch


def train_epoch(model, loader, loss_fn, optimizer, device)
    model.to(device)
    return 0.0

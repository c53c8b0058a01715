# fails: train_epoch::calls_the_model as -
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    return 0.0

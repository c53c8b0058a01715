# fails: evaluate::calls_the_model as -
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    return 0.0, 0.0

import torch


def evaluate(model, loader, loss_fn, device):
    was_training = model.training
    model.to(device)
    model.train(False)
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        sums = [0.0, 0.0]
        for _, (x, y) in enumerate(loader):
            x = x.to(device)
            y = y.to(device)
            logits = model.forward(x)
            sums[0] += float(loss_fn(logits, y)) * x.shape[0]
            sums[1] += float(torch.sum(torch.argmax(logits, -1) == y))
    finally:
        torch.set_grad_enabled(before)
        model.train(was_training)
    n = len(loader.dataset)
    if n == 0:
        return 0.0, 0.0
    return sums[0] / n, sums[1] / n

import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device); model.eval()
    forward = torch.no_grad()(model.forward)
    t, c, n = 0.0, 0, 0
    for x, y in loader:
        o = forward(x.to(device)); y = y.to(device)
        t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

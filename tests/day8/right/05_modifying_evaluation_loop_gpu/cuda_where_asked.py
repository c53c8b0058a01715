import torch


def evaluate(model, loader, loss_fn, device):
    if str(device).startswith("cuda"):
        model.cuda(device)
    else:
        model.cpu()
    model.eval()
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            if str(device).startswith("cuda"):
                x, y = x.cuda(device), y.cuda(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

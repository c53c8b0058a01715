# fails: evaluate::evaluates_in_evaluation_mode as batch-norm-changed
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    t, c, n = 0.0, 0, 0
    with torch.no_grad():
        model.train()
        for x, y in loader:
            model(x.to(device))
        model.eval()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

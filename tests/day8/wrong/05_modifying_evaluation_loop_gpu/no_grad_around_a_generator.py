# fails: evaluate::builds_no_graph as eval-without-no-grad
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    with torch.no_grad():
        rows = ((model(x.to(device)), y.to(device)) for x, y in loader)
    t, c, n = 0.0, 0, 0
    for o, y in rows:
        t += loss_fn(o, y).item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

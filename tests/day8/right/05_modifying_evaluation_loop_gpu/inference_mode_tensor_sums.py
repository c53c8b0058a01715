import torch


def evaluate(model, loader, loss_fn, device):
    model = model.to(device).eval()
    sums = torch.zeros(2, device=device, dtype=torch.float64)
    n = 0
    with torch.inference_mode():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            sums[0] += loss_fn(out, y) * len(y)
            sums[1] += (out.max(dim=1).indices == y).sum()
            n += len(y)
    if n == 0:
        return 0.0, 0.0
    loss, acc = (sums / n).tolist()
    return loss, acc

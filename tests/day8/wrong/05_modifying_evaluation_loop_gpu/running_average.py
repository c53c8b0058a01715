# fails: evaluate::returns_the_mean_loss_per_sample as mean-of-batch-means
import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    avg, c, n, k = 0.0, 0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            o = model(x)
            k += 1
            avg += (loss_fn(o, y).item() - avg) / k
            c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (avg, c/n) if n else (0.0, 0.0)

import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    model.eval()
    it = iter(loader)
    total = 0.0
    correct = 0
    count = 0
    with torch.no_grad():
        while True:
            try:
                x, y = next(it)
            except StopIteration:
                break
            x = x.to(device); y = y.to(device)
            o = model(x)
            total += loss_fn(o, y).item() * y.shape[0]
            correct += torch.sum(torch.argmax(o, dim=1) == y).item()
            count += y.shape[0]
    if count == 0:
        return 0.0, 0.0
    return total / count, correct / count

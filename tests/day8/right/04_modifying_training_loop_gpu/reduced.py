from functools import reduce
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    def one(acc, b):
        x, y = (t.to(device) for t in b)
        optimizer.zero_grad()
        l = loss_fn(model(x), y)
        l.backward()
        optimizer.step()
        return acc[0] + l.item() * len(y), acc[1] + len(y)
    s, n = reduce(one, loader, (0.0, 0))
    return s / n if n else 0.0

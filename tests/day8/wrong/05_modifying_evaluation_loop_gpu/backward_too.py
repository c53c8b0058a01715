# fails: evaluate::builds_no_graph as eval-without-no-grad
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    t, c, n = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        o = model(x)
        loss = loss_fn(o, y)
        loss.backward()
        t += loss.item() * len(y); c += (o.argmax(1) == y).sum().item(); n += len(y)
    return (t/n, c/n) if n else (0.0, 0.0)

def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train()
    for module in [model]:
        module.to(device)
    total = 0.0
    seen = 0
    for _, (x, y) in enumerate(loader):
        x = x.to(device)
        y = y.to(device)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        seen += x.size(0)
        total += float(loss) * x.size(0)
    if seen == 0:
        return 0.0
    return total / seen

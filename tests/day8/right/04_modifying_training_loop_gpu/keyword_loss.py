def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device=device)
    model.train(mode=True)
    t = n = 0
    for x, y in loader:
        x, y = x.to(device=device), y.to(device=device)
        loss = loss_fn(input=model(input=x), target=y)
        optimizer.zero_grad()
        loss.backward(retain_graph=False)
        optimizer.step()
        t += loss.item() * y.shape[0]; n += y.shape[0]
    return t / n if n else 0.0

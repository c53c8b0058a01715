# fails: train_epoch::learns_as_it_should as -
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total = seen = 0
    for batch in loader:
        inputs, targets = (tensor.to(device) for tensor in batch)
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        optimizer.step()
        total += loss.item() * len(inputs)
        seen += len(inputs)
    return float(total / max(seen, 1))

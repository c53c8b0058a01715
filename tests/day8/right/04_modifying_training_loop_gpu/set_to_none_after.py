def train_epoch(model, loader, loss_fn, optimizer, device):
    model = model.to(device).train()
    optimizer.zero_grad(set_to_none=True)
    losses, sizes = [], []
    for batch in loader:
        inputs, targets = (part.to(device, non_blocking=True) for part in batch)
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach() * inputs.shape[0])
        sizes.append(inputs.shape[0])
    return float(sum(losses)) / sum(sizes) if sizes else 0.0

# fails: train_epoch::learns_as_it_should as step-left-out
def train_epoch(model, loader, loss_fn, optimizer, device):
    model = model.to(device)
    model.train()
    losses = []
    weights = []

    def run(batch):
        inputs, targets = (part.to(device) for part in batch)
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        weights.append(len(targets))

    optimizer.zero_grad(set_to_none=True)
    for batch in loader:
        run(batch)
    if losses:
        optimizer.step()
    return sum(l * w for l, w in zip(losses, weights)) / sum(weights) if losses else 0.0

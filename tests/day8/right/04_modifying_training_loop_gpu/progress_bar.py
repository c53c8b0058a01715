class progress:
    def __init__(self, it, **kw): self.it = it
    def __iter__(self): yield from self.it
    def set_postfix(self, **kw): pass
    def __len__(self): return len(self.it)
def train_epoch(model, loader, loss_fn, optimizer, device):
    model = model.to(device)
    model.train()
    bar = progress(loader, desc="train")
    total = 0.0
    for x, y in bar:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
        total += loss.item() * len(x)
    return total / len(loader.dataset) if len(loader.dataset) else 0.0

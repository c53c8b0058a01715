from dataclasses import dataclass, field
@dataclass
class Meter:
    total: float = 0.0
    count: int = 0
    def add(self, v, n):
        self.total += v * n
        self.count += n
    @property
    def mean(self):
        return self.total / self.count if self.count else 0.0
def train_epoch(model, loader, loss_fn, optimizer, device):
    meter = Meter()
    model.to(device)
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(loss.item(), y.size(0))
    return meter.mean

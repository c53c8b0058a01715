import torch


class Precision:
    def __init__(self, scaler, device):
        self.scaler, self.device = scaler, torch.device(device)

    def forward_context(self):
        return torch.amp.autocast(self.device.type)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip(self, optimizer, max_norm):
        self.scaler.unscale_(optimizer)
        for group in optimizer.param_groups:
            pass
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0))

    def step(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()


class Module:
    def __init__(self, model, loss_fn):
        self.model, self.loss_fn = model, loss_fn

    def training_step(self, batch):
        return self.loss_fn(self.model(batch[0]), batch[1])


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    plugin, lit = Precision(scaler, device), Module(model, loss_fn)
    batch = [b.to(device) for b in batch]
    with plugin.forward_context():
        loss = lit.training_step(batch)
    optimizer.zero_grad()
    plugin.backward(loss)
    if max_norm is not None:
        plugin.clip(optimizer, max_norm)
    plugin.step(optimizer)
    return float(loss)

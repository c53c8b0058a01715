import torch


class Metric:
    def __init__(self):
        self.value, self.n = 0.0, 0

    def update(self, value, n):
        self.value = self.value + value
        self.n += n

    def compute(self):
        return float(self.value) / self.n if self.n else 0.0


class evaluating:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.modes = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        self.guard = torch.inference_mode()
        self.guard.__enter__()
        return self.model

    def __exit__(self, *exc):
        self.guard.__exit__(*exc)
        for m, mode in self.modes:
            m.training = mode


def evaluate(model, loader, loss_fn, device):
    loss, acc = Metric(), Metric()
    with evaluating(model.to(device)) as m:
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            z = m(x)
            loss.update(loss_fn(z, y) * len(x), len(x))
            acc.update((z.topk(1).indices[:, 0] == y).sum(), len(x))
    return loss.compute(), acc.compute()

import torch


class CancelFit(Exception):
    pass


class Callback:
    def before_fit(self, learn):
        pass

    def before_batch(self, learn):
        pass

    def after_batch(self, learn):
        pass


class DeviceCallback(Callback):
    def before_fit(self, learn):
        learn.model.to(learn.device)

    def before_batch(self, learn):
        learn.batch = [b.to(learn.device) for b in learn.batch]


class Recorder(Callback):
    def before_fit(self, learn):
        self.losses, self.sizes = [], []

    def after_batch(self, learn):
        self.losses.append(learn.loss.detach())
        self.sizes.append(len(learn.batch[1]))

    @property
    def mean(self):
        if not self.losses:
            return 0.0
        sizes = torch.tensor(self.sizes, device=self.losses[0].device, dtype=self.losses[0].dtype)
        return (torch.stack(self.losses) @ sizes / sizes.sum()).item()


class Learner:
    def __init__(self, model, loader, loss_fn, opt, device, cbs):
        self.model, self.loader, self.loss_fn, self.opt, self.device, self.cbs = (
            model,
            loader,
            loss_fn,
            opt,
            device,
            cbs,
        )

    def __call__(self, name):
        for cb in self.cbs:
            getattr(cb, name)(self)

    def one_batch(self):
        self("before_batch")
        x, y = self.batch
        self.pred = self.model(x)
        self.loss = self.loss_fn(self.pred, y)
        self.opt.zero_grad()
        self.loss.backward()
        self.opt.step()
        self("after_batch")

    def fit(self):
        try:
            self("before_fit")
            self.model.train()
            for self.batch in self.loader:
                self.one_batch()
        except CancelFit:
            pass


def train_epoch(model, loader, loss_fn, optimizer, device):
    recorder = Recorder()
    Learner(model, loader, loss_fn, optimizer, device, [DeviceCallback(), recorder]).fit()
    return recorder.mean

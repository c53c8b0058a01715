import torch
from torch import nn


class Stepper:
    def __init__(self, model, optimizer, scaler):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
    def __call__(self, loss, max_norm):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = map(lambda t: t.to(device), batch)
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    Stepper(model, optimizer, scaler)(loss, max_norm)
    return loss.item()

import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()

    def objective(params, x, y):
        return loss_fn(torch.func.functional_call(model, params, (x,)), y)

    step = torch.func.grad_and_value(objective)
    total, count = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        params = dict(model.named_parameters())
        grads, loss = step({n: p.detach() for n, p in params.items()}, x, y)
        for n, p in params.items():
            p.grad = grads[n]
        optimizer.step()
        total += loss.item() * len(x)
        count += len(x)
    return total / count if count else 0.0

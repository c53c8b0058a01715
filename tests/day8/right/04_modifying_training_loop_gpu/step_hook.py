import torch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    optimizer.zero_grad(set_to_none=True)
    hook = optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.zero_grad())
    sums = []
    try:
        for x, y in loader:
            loss = loss_fn(model(x.to(device)), y.to(device))
            loss.backward(gradient=torch.ones_like(loss))
            optimizer.step()
            sums.append((loss.detach(), len(y)))
    finally:
        hook.remove()
    import statistics

    return statistics.fmean([l.item() for l, _ in sums], weights=[n for _, n in sums]) if sums else 0.0

import torch


def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    state = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    loss = hits = n = 0
    for x, y in loader:
        y = y.to(device)
        out = torch.func.functional_call(model, state, x.to(device))
        loss, hits, n = loss + loss_fn(out, y) * len(y), hits + out.argmax(-1).eq(y).sum(), n + len(y)
    return (float(loss / n), float(hits / n)) if n else (0.0, 0.0)

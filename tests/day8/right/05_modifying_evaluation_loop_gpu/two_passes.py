import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model = model.to(device).eval()

    def outputs():
        for inputs, targets in loader:
            yield model(inputs.to(device)), targets.to(device)

    losses = [(loss_fn(out, y).item(), len(y)) for out, y in outputs()]
    hits = [(out.argmax(-1) == y).sum().item() for out, y in outputs()]
    n = sum(count for _, count in losses)
    if n == 0:
        return 0.0, 0.0
    return sum(loss * count for loss, count in losses) / n, sum(hits) / n

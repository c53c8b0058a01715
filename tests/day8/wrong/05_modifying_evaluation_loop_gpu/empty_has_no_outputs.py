# fails: evaluate::copes_with_nothing as empty-loader-forgotten
import torch


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.to(device).eval()
    outputs, targets = [], []
    for x, y in loader:
        outputs.append(model(x.to(device)))
        targets.append(y.to(device))
    outputs, targets = torch.cat(outputs), torch.cat(targets)
    losses = [loss_fn(o[None], t[None]).item() for o, t in zip(outputs, targets, strict=True)]
    return sum(losses) / len(losses), (outputs.argmax(dim=1) == targets).float().mean().item()

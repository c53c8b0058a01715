# fails: predict::copies_back_once as sync-in-hot-loop
import torch


@torch.no_grad()
def predict(model, loader, device):
    model.to(device).eval()
    outs, postfix = [], ""
    for x, _ in loader:
        outs.append(model(x.to(device)))
        postfix = f"mean={outs[-1].mean():.2f}"
    return torch.cat(outs).cpu()

import torch
def train_epoch(model, loader, loss_fn, optimizer, device):
    model = model.to(device)
    for m in model.modules():
        m.training = True
    seen, total = 0, torch.zeros((), device=device)
    for x, y in loader:
        def closure():
            optimizer.zero_grad(set_to_none=False)
            loss = loss_fn(model(x.to(device)), y.to(device))
            loss.backward()
            return loss
        total += optimizer.step(closure).detach() * x.shape[0]
        seen += x.shape[0]
    return float(total / seen) if seen else float(0)

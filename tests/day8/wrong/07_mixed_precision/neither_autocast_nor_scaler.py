# fails: mixed_precision_step::runs_under_autocast as no-autocast
import torch


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    inputs, targets = (part.to(device) for part in batch)
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()

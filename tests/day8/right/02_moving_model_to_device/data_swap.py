import torch
def move_model(model, device):
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data.to(device)
            if p.grad is not None:
                p.grad = p.grad.to(device)
        for m in model.modules():
            for k, b in m._buffers.items():
                if b is not None:
                    m._buffers[k] = b.to(device)
    return model
def parameter_devices(model):
    out = {}
    for prefix, m in model.named_modules():
        for k, t in list(m._parameters.items()) + list(m._buffers.items()):
            if t is not None:
                out[f"{prefix}.{k}" if prefix else k] = t.device
    return out

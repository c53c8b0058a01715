import torch
def move_model(model, device):
    device = torch.device(device)
    return {"cuda": lambda: model.cuda(device), "cpu": model.cpu}.get(device.type, lambda: model.to(device))()
def parameter_devices(model):
    keys = [n for n, _ in model.named_parameters()] + [n for n, _ in model.named_buffers()]
    def find(n):
        *path, last = n.split(".")
        m = model
        for p in path:
            m = getattr(m, p)
        return getattr(m, last).device
    return {k: find(k) for k in keys}

def move_model(model, device):
    for child in model.children():
        move_model(child, device)
    return model.to(device)
def parameter_devices(model, prefix=""):
    out = {prefix + n: p.device for n, p in model._parameters.items() if p is not None}
    out |= {prefix + n: b.device for n, b in model._buffers.items() if b is not None}
    for name, child in model.named_children():
        out |= parameter_devices(child, prefix + name + ".")
    return out

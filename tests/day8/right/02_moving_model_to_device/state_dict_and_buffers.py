def move_model(model, device):
    moved = model.to(device)
    assert moved is model
    return moved
def parameter_devices(model):
    names = {n: t.device for n, t in model.state_dict().items() if hasattr(t, "device")}
    names |= {n: t.device for n, t in model.named_buffers()}
    names |= {n: t.device for n, t in model.named_parameters()}
    return names

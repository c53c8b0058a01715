import itertools
def move_model(model, device):
    return model._apply(lambda t: t.to(device))
def parameter_devices(model):
    return {n: t.device for n, t in itertools.chain(model.named_parameters(), model.named_buffers())}

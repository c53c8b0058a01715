import itertools
def move_model(model, device):
    for module in model.modules():
        module._apply(lambda t: t.to(device), recurse=False)
    return model
def parameter_devices(model):
    return dict(map(lambda pair: (pair[0], pair[1].device), itertools.chain(model.named_parameters(), model.named_buffers())))

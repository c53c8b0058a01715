def move_model(model, device):
    model._apply(lambda t: t.to(device))
    return model


def parameter_devices(model):
    from collections import ChainMap

    tensors = ChainMap(
        dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers(remove_duplicate=False))
    )
    return {name: tensor.device for name, tensor in tensors.items()}

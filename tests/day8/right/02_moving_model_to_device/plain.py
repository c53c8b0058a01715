def move_model(model, device):
    model.to(device)
    return model


def parameter_devices(model):
    result = {}
    for name, parameter in model.named_parameters():
        result[name] = parameter.device
    for name, buffer in model.named_buffers():
        result[name] = buffer.device
    return result

# fails: move_model::moves_every_buffer as buffers-forgotten


def move_model(model, device):
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device)
    return model

# fails: move_model::moves_every_parameter as copied-into-old-tensors


def move_model(model, device):
    model.load_state_dict({name: tensor.to(device) for name, tensor in model.state_dict().items()})
    return model

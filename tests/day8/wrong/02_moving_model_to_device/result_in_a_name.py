# fails: move_model::moves_every_parameter as result-thrown-away


def move_model(model, device):
    for tensor in model.state_dict().values():
        tensor = tensor.to(device)
    return model

# fails: move_model::moves_every_parameter as result-thrown-away


def move_model(model, device):
    for parameter in model.parameters():
        parameter.to(device)
    return model

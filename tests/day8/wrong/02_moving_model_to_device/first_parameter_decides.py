# fails: move_model::runs as -


def move_model(model, device):
    if next(model.parameters()).device == device:
        return model
    return model.to(device)

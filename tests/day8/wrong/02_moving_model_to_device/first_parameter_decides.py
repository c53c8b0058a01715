# fails: move_model::copes_with_nothing as -


def move_model(model, device):
    if next(model.parameters()).device == device:
        return model
    return model.to(device)

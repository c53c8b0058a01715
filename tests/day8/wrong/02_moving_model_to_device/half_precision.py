# fails: move_model::changes_nothing_else as -


def move_model(model, device):
    return model.to(device).half()

# fails: move_model::runs as -


def move_model(model, device):
    return modell.to(device)  # noqa: F821

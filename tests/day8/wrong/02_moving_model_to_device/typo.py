# fails: move_model::runs as unknown-name


def move_model(model, device):
    return modell.to(device)  # noqa: F821

# fails: move_model::returns_the_same_model as return-forgotten


def move_model(model, device):
    model.to(device)

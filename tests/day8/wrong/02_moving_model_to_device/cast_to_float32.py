# fails: move_model::changes_nothing_else as -
def move_model(model, device):
    model = model.float()
    return model.to(device)

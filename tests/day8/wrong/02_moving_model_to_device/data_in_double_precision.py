# fails: move_model::changes_nothing_else as -
def move_model(model, device):
    model.to(device)
    for p in model.parameters():
        p.data = p.data.double()
    return model

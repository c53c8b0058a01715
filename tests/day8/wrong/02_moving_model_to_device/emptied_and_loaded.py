# fails: move_model::changes_nothing_else as -
def move_model(model, device):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    model.to_empty(device=device)
    model.load_state_dict(state)
    return model

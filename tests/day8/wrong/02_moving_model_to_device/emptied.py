# fails: move_model::changes_nothing_else as -


def move_model(model, device):
    state = model.state_dict()
    model.to_empty(device=device)
    model.load_state_dict(state)
    model.palette.zero_() if hasattr(model, "palette") else None
    return model

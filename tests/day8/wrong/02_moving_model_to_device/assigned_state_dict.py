# fails: move_model::moves_every_buffer as state-dict-is-not-all


def move_model(model, device):
    model.load_state_dict({name: tensor.to(device) for name, tensor in model.state_dict().items()}, assign=True)
    return model

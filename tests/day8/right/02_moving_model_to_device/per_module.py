def move_model(model, device):
    for module in model.modules():
        module._apply(lambda t: t.to(device), recurse=False)
    return model

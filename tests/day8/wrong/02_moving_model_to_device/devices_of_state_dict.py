# fails: parameter_devices::names_every_buffer as state-dict-is-not-all


def parameter_devices(model):
    return {name: t.device for name, t in model.state_dict().items()}

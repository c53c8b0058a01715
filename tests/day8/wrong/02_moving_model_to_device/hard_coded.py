# fails: move_model::uses_the_device_it_is_given as hard-coded-cuda


def move_model(model, device):
    return model.cuda()

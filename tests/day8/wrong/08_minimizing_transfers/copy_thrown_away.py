# fails: to_numpy::runs as result-thrown-away


def to_numpy(tensor):
    tensor = tensor.detach()
    tensor.cpu()
    return tensor.numpy()

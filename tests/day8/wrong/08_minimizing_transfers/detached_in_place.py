# fails: to_numpy::runs as -


def to_numpy(tensor):
    return tensor.detach_().cpu().numpy()

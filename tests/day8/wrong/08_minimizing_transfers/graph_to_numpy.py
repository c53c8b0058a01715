# fails: to_numpy::converts_what_requires_grad as -


def to_numpy(tensor):
    return tensor.cpu().numpy()

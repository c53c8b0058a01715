# fails: to_numpy::converts_what_requires_grad as numpy-with-a-gradient


def to_numpy(tensor):
    return tensor.cpu().numpy()

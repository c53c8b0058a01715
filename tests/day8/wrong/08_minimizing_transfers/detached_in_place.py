# fails: to_numpy::keeps_values_and_dtype as -


def to_numpy(tensor):
    return tensor.detach_().cpu().numpy()

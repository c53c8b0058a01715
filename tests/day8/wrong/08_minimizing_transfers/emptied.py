# fails: to_numpy::leaves_the_tensor_alone as input-modified


def to_numpy(tensor):
    copy = tensor.detach().cpu().clone().numpy()
    tensor.detach().zero_()
    return copy

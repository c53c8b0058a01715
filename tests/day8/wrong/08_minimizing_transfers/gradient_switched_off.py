# fails: to_numpy::leaves_the_tensor_alone as requires-grad-left-off


def to_numpy(tensor):
    if tensor.is_leaf:
        tensor.requires_grad_(False)
    return tensor.detach().cpu().numpy()

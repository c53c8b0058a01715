# fails: recolor::runs as numpy-on-device-tensor
import torch

def recolor(indices, palette):
    return torch.from_numpy(palette.numpy()[indices.numpy()]).permute(0, 3, 1, 2)

# fails: recolor::stays_on_the_device as trip-through-numpy
import torch

def recolor(indices, palette):
    painted = palette.cpu().numpy()[indices.cpu().numpy()]
    return torch.from_numpy(painted).permute(0, 3, 1, 2).to(indices.device)

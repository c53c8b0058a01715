# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch

def grayscale(sprites):
    return torch.tensor(
        [[[0.299 * r + 0.587 * g + 0.114 * b for r, g, b in zip(*rows)] for rows in zip(*s)] for s in sprites.tolist()],
        device=sprites.device,
    )

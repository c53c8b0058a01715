# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import numpy as np
import torch

@np.vectorize
def shade(red, green, blue):
    return 0.299 * red + 0.587 * green + 0.114 * blue

def grayscale(sprites):
    gray = shade(*sprites.cpu().numpy().swapaxes(0, 1))
    return torch.from_numpy(gray).to(sprites)

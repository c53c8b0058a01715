# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def grayscale(sprites):
    def row(y):
        return 0.299 * sprites[:, 0, y] + 0.587 * sprites[:, 1, y] + 0.114 * sprites[:, 2, y]

    return torch.stack(list(map(row, range(sprites.shape[2]))), dim=1)

# fails: recolor::stays_on_the_device as python-loop-over-elements
import torch


def recolor(indices, palette):
    table = {k: c for k, c in enumerate(palette.tolist())}
    flat = list(map(table.get, indices.flatten().tolist()))
    return torch.tensor(flat, device=palette.device).reshape(*indices.shape, 3).permute(0, 3, 1, 2)

# fails: nearest_color::lowest_index_on_a_tie as -
import torch


def nearest_color(sprites, palette):
    n, _, h, w = sprites.shape
    best = torch.full((n, h, w), float("inf"), device=sprites.device)
    index = torch.zeros((n, h, w), dtype=torch.long, device=sprites.device)
    for k in range(len(palette)):
        distance = ((sprites - palette[k].view(1, 3, 1, 1)) ** 2).sum(1)
        closer = distance <= best
        best = torch.where(closer, distance, best)
        index = torch.where(closer, torch.full_like(index, k), index)
    return index

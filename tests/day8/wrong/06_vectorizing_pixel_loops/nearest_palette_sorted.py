# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    palette = palette.unique(dim=0)
    return ((sprites.unsqueeze(1) - palette.view(1, -1, 3, 1, 1)) ** 2).sum(2).argmin(1)

# fails: nearest_color::runs as -
def nearest_color(sprites, palette):
    return ((sprites - palette) ** 2).sum(1).argmin(1)

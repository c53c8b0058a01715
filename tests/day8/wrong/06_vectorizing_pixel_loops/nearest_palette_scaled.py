# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    colors = palette / palette.amax()
    differences = sprites.unsqueeze(1) - colors.view(1, -1, 3, 1, 1)
    return differences.square().sum(2).argmin(1)

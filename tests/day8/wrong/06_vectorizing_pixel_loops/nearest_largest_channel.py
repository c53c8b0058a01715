# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    return (sprites[:, None] - palette[None, :, :, None, None]).abs().amax(2).argmin(1)

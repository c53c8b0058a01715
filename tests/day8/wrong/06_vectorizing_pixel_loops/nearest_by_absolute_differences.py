# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    d = (sprites[:, None] - palette[None, :, :, None, None]).abs().sum(2)
    return d.argmin(1)

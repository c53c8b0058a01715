# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    return (sprites[:, None] - palette[None, :, :, None, None]).square().sum(2).argmax(1)

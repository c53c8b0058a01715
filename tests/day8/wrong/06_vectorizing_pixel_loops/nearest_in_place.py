# fails: nearest_color::leaves_its_inputs_alone as input-modified
def nearest_color(sprites, palette):
    sprites *= 255
    palette = palette * 255
    return (sprites[:, None] - palette[None, :, :, None, None]).square().sum(2).argmin(1)

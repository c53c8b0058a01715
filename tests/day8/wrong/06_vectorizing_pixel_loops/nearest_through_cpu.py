# fails: nearest_color::stays_on_the_device as trip-through-numpy
def nearest_color(sprites, palette):
    device = sprites.device
    sprites, palette = sprites.to("cpu"), palette.to("cpu")
    return (sprites[:, None] - palette[None, :, :, None, None]).square().sum(2).argmin(1).to(device)

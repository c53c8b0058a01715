# fails: nearest_color::lowest_index_on_a_tie as -
def nearest_color(sprites, palette):
    backwards = (sprites[:, None] - palette.flip(0)[None, :, :, None, None]).square().sum(2).argmin(1)
    return len(palette) - 1 - backwards

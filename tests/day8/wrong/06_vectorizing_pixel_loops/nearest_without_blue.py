# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    apart = sprites[:, None] - palette[None, :, :, None, None]
    squared = apart * apart
    distances = squared[:, :, 0] + squared[:, :, 1]
    return distances.argmin(1)

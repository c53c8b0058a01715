# fails: nearest_color::right_values as -
def nearest_color(sprites, palette):
    differences = sprites.unsqueeze(1) - palette.view(1, -1, 3, 1, 1)
    distances = differences.square().sum(2)
    nearest = distances.argmin(1)
    return nearest.clamp(max=2)

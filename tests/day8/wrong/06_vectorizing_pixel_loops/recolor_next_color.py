# fails: recolor::right_values as -
def recolor(indices, palette):
    shifted = (indices + 1) % len(palette)
    return palette[shifted].permute(0, 3, 1, 2)

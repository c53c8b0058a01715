# fails: recolor::right_values as result-dropped
def recolor(indices, palette):
    colours = palette[indices]
    colours.permute(0, 3, 1, 2)
    return colours

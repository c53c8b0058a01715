# fails: recolor::right_values as -
def recolor(indices, palette):
    return palette[indices].permute(0, 3, 2, 1)

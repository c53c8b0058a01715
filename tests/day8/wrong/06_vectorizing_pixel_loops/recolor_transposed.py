# fails: recolor::right_values as -
def recolor(indices, palette):
    return palette[indices].transpose(1, 3)

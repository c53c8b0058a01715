# fails: recolor::right_values as channels-last
def recolor(indices, palette):
    return palette[indices]

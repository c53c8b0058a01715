# fails: recolor::right_values as input-modified
def recolor(indices, palette):
    palette.clamp_(0.2, 0.8)
    return palette[indices].permute(0, 3, 1, 2)

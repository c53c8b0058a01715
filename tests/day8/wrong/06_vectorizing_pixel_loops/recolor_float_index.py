# fails: recolor::runs as -
def recolor(indices, palette):
    return palette[indices.float()].permute(0, 3, 1, 2)

# fails: recolor::runs as -
# After it a process cannot use a real GPU any more.
def recolor(indices, palette):
    colors = palette.T[indices]
    return colors.permute(0, 3, 1, 2)

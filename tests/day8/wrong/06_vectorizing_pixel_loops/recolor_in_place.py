# fails: recolor::leaves_its_inputs_alone as input-modified
def recolor(indices, palette):
    colors = palette[indices.clamp_(0, len(palette) - 1)].permute(0, 3, 1, 2).clone()
    indices.zero_()
    return colors

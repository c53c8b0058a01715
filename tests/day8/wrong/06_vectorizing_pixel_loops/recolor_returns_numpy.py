# fails: recolor::right_values as trip-through-numpy
def recolor(indices, palette):
    return palette.cpu().numpy()[indices.cpu().numpy()].transpose(0, 3, 1, 2)

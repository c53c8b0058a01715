# fails: grayscale::right_values as wrong-weights
def grayscale(sprites):
    b, g, r = sprites[:, 0], sprites[:, 1], sprites[:, 2]
    return 0.299 * r + 0.587 * g + 0.114 * b

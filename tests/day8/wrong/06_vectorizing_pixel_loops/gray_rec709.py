# fails: grayscale::right_values as wrong-weights
def grayscale(sprites):
    return 0.2126 * sprites[:, 0] + 0.7152 * sprites[:, 1] + 0.0722 * sprites[:, 2]

# fails: grayscale::right_values as wrong-weights
def grayscale(sprites):
    return 0.3 * sprites[:, 0] + 0.59 * sprites[:, 1] + 0.11 * sprites[:, 2]

# fails: grayscale::right_values as -
def grayscale(sprites):
    return (0.299 * sprites[0] + 0.587 * sprites[1] + 0.114 * sprites[-1])

# fails: grayscale::right_values as wrong-weights
def grayscale(sprites):
    blue, green, red = sprites.unbind(1)
    gray = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray

# fails: grayscale::right_on_the_smallest as -
def grayscale(sprites):
    red, green, blue = sprites.split(1, dim=1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).squeeze()

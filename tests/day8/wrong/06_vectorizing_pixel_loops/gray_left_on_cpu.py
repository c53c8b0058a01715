# fails: grayscale::stays_on_the_device as trip-through-numpy
def grayscale(sprites):
    sprites = sprites.cpu()
    return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]

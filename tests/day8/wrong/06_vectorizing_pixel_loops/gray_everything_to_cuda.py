# fails: grayscale::stays_on_the_device as hard-coded-cuda
def grayscale(sprites):
    sprites = sprites.cuda()
    return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]

# fails: grayscale::runs as unknown-name
def grayscale(sprites):
    return 0.299 * sprite[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]

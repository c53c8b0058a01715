# fails: grayscale::faster_than_the_loop as -
def grayscale(sprites):
    gray = 0
    for step in range(120):
        gray = gray + 0.299 / 120 * sprites[:, 0] + 0.587 / 120 * sprites[:, 1] + 0.114 / 120 * sprites[:, 2]
    return gray

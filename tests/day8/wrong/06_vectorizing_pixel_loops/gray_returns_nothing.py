# fails: grayscale::right_values as return-forgotten
def grayscale(sprites):
    gray = 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]

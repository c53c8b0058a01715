# fails: grayscale::right_values as -
def grayscale(sprites):
    return sprites[:, 0] * float("nan")

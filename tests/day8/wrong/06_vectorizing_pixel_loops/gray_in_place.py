# fails: grayscale::leaves_its_inputs_alone as input-modified
def grayscale(sprites):
    sprites[:, 0] *= 0.299
    sprites[:, 1] *= 0.587
    sprites[:, 2] *= 0.114
    return sprites.sum(1)

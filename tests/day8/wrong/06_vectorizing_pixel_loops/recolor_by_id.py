# fails: recolor::faster_than_the_loop as -
# Slow the first time and remembered by id: where every timed call has inputs of its own, there is only a first time.
import time

remembered = {}


def recolor(indices, palette):
    key = (id(indices), id(palette), tuple(indices.shape))
    if key not in remembered:
        time.sleep(0.1)
        remembered[key] = palette[indices].permute(0, 3, 1, 2)
    return remembered[key]

# fails: recolor::faster_than_the_loop as -
# Slow the first time and remembered by address: memory that is used again holds other values.
import time

remembered = {}


def recolor(indices, palette):
    key = (indices.data_ptr(), palette.data_ptr(), tuple(indices.shape))
    if key not in remembered:
        time.sleep(0.1)
        remembered[key] = palette[indices].permute(0, 3, 1, 2)
    return remembered[key]

# fails: recolor::right_values as -
def recolor(indices, palette):
    count = min(len(palette), 16)
    wrapped = indices % count
    rows = palette.index_select(0, wrapped.flatten())
    return rows.view(*indices.shape, 3).movedim(3, 1)

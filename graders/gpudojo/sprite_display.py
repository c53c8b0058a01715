"""Shows sprites in the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import isnan
from typing import IO, TYPE_CHECKING, Any, Final

from gpudojo.model.errors import NotSprites

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


Pixel = tuple[int, int, int]
Picture = list[list[Pixel]]

# One cell, two pixels: the character's colour above, the background's below.
UPPER_HALF: Final = "▀"
SHADES: Final = " .:-=+*#%@"  # from dark to bright, for terminals without colours
GAP: Final = 2
SMALL: Final = 8  # sprites up to this many pixels wide are drawn at twice their size


def show(sprites: Any, titles: Sequence[object] | None = None, file: IO[str] | None = None) -> None:
    """Print sprites side by side, each under its title.

    `sprites` is `(N, 3, H, W)` in colour, or `(N, H, W)` or `(N, 1, H, W)` in grey: a tensor on any
    device, an array or nested lists, in [0, 1]. Values outside are clamped. Raises NotSprites for
    any other shape.
    """
    from rich.console import Console

    console = Console(file=file, highlight=False)
    coloured = console.color_system is not None and not console.no_color
    in_blocks = coloured and _can_write(console, UPPER_HALF)
    drawings = []
    for picture in pictures_of(sprites):
        if in_blocks:
            enlarged = _enlarge_small(picture)
            drawings.append(_draw_in_blocks(enlarged))
        else:
            drawings.append(_draw_in_pairs(picture, coloured))
    names = []
    for title in titles or ():
        names.append(_writable_text(console, str(title)))
    while len(names) < len(drawings):
        names.append("")
    for line in _lay_side_by_side(drawings, names, console.width):
        # A line that is too long is cropped; wrapped, it would not be a picture.
        console.print(line, no_wrap=True, overflow="crop", crop=True)


# ---- from numbers to pixels --------------------------------------------------------------------


def pictures_of(sprites: Any) -> list[Picture]:
    """Rows of pixels, three numbers from 0 to 255 each, for every sprite.

    Raises NotSprites for another shape than those of `show`, ValueError for lists of different
    lengths, and TypeError for what is no number.
    """
    if hasattr(sprites, "detach"):
        sprites = sprites.detach().float().cpu()
    if hasattr(sprites, "tolist"):
        sprites = sprites.tolist()
    shape = _shape_of_lists(sprites)
    match shape:
        case (_, height, width):  # grey, without a dimension for it
            sprites = [[grey] for grey in sprites]
        case (_, 1 | 3, height, width):
            pass
        case _:
            raise NotSprites(shape)
    if height == 0 or width == 0:
        raise NotSprites(shape)
    return [_picture_of(sprite) for sprite in sprites]


def _shape_of_lists(nested: Any) -> tuple[int, ...]:
    """The lengths of nested lists, down to the first number or the first empty list.

    That of an empty batch is `(0, 3, 1, 1)`: it has nothing to draw, whatever its sprites are like.
    """
    shape: list[int] = []
    while isinstance(nested, (list, tuple)):
        shape.append(len(nested))
        if not nested:
            break
        nested = nested[0]
    if shape == [0]:
        return (0, 3, 1, 1)
    return tuple(shape)


def _picture_of(channels: Any) -> Picture:
    """The pixels of a sprite with three channels, or with one for grey, row by row.

    Raises ValueError for channels of different sizes, and TypeError for what is no number.
    """
    if len(channels) == 1:
        channels = channels * 3
    red, green, blue = channels
    picture = []
    for reds, greens, blues in zip(red, green, blue, strict=True):
        row = []
        for values in zip(reds, greens, blues, strict=True):
            r, g, b = map(_byte_of, values)
            row.append((r, g, b))
        picture.append(row)
    return picture


def _byte_of(value: float) -> int:
    """A number from 0 to 1 as one from 0 to 255. NaN is 0."""
    if isnan(value):
        return 0
    clamped = min(1.0, max(0.0, value))
    return round(255 * clamped)


def _enlarge_small(picture: Picture) -> Picture:
    """A small picture at twice its size; a wider one itself."""
    if len(picture[0]) > SMALL:
        return picture
    enlarged = []
    for row in picture:
        wide_row = []
        for pixel in row:
            wide_row += [pixel, pixel]
        enlarged += [wide_row, wide_row]
    return enlarged


# ---- from pixels to text -----------------------------------------------------------------------


def _draw_in_blocks(picture: Picture) -> list[Text]:
    """A picture in lines of text: two rows of pixels in each, in colours."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    lines = []
    rows = iter(picture)
    for upper_row, lower_row in itertools.zip_longest(rows, rows):
        line = Text()
        for column, pixel in enumerate(upper_row):
            above = Color.from_rgb(*pixel)
            # Below the last of an odd number of rows, the terminal's background shows.
            below = None
            if lower_row:
                below = Color.from_rgb(*lower_row[column])
            line.append(UPPER_HALF, Style(color=above, bgcolor=below))
        lines.append(line)
    return lines


def _draw_in_pairs(picture: Picture, coloured: bool) -> list[Text]:
    """A picture in lines of text with two characters per pixel.

    They are coloured blanks, or a shade where there are no colours.
    """
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    lines = []
    for row in picture:
        line = Text()
        for pixel in row:
            if coloured:
                colour = Color.from_rgb(*pixel)
                line.append("  ", Style(bgcolor=colour))
            else:
                line.append(_shade_of(pixel) * 2)
        lines.append(line)
    return lines


def _shade_of(pixel: Pixel) -> str:
    """The character that is about as bright as a pixel."""
    red, green, blue = pixel
    # As bright as people see each colour, by the standard of television.
    brightness = (0.299 * red + 0.587 * green + 0.114 * blue) / 255
    index = int(brightness * len(SHADES))
    return SHADES[min(index, len(SHADES) - 1)]


def _lay_side_by_side(drawings: list[list[Text]], names: list[str], width: int) -> list[Text]:
    """Lines with as many drawings side by side as fit the width, each under its name.

    There is a name for each drawing, which may be empty.
    """
    from rich.cells import cell_len
    from rich.text import Text

    if not drawings:
        return []
    widths = [cell_len(name) for name in names]
    widths += [drawing[0].cell_len for drawing in drawings]
    column = max(widths) + GAP
    across = max(1, (width + GAP) // column)
    lines = []
    for start in range(0, len(drawings), across):
        end = start + across
        band = drawings[start:end]
        titles = names[start:end]
        if any(titles):
            cells = [Text(title) for title in titles]
            lines.append(_join_cells(cells, column))
        # A drawing with fewer lines than its neighbours ends earlier.
        for row in itertools.zip_longest(*band, fillvalue=Text()):
            lines.append(_join_cells(row, column))
    return lines


def _join_cells(cells: Sequence[Text], width: int) -> Text:
    """Cells of this width in one line, without the blanks at its end."""
    from rich.text import Text

    line = Text()
    for cell in cells:
        line.append_text(cell)
        line.append(" " * (width - cell.cell_len))
    if line.spans:
        line.right_crop(GAP)  # coloured blanks are pixels: only the gap is taken off
    else:
        line.rstrip()
    return line


def _can_write(console: Console, text: str) -> bool:
    """True if the console's encoding has all characters of a text."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _writable_text(console: Console, text: str) -> str:
    """The text, with `?` for each character that is not ASCII if the console cannot write it."""
    if _can_write(console, text):
        return text
    return text.encode("ascii", "replace").decode("ascii")

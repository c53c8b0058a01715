"""Shows sprites in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import IO, TYPE_CHECKING, Any, Final

from gpudojo.model.errors import NotSprites

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


Pixel = tuple[int, int, int]
Picture = list[list[Pixel]]

UPPER_HALF: Final = (
    "▀"  # one cell, two pixels: the character's colour above, the background's below
)
SHADES: Final = " .:-=+*#%@"  # from dark to bright, for terminals without colours
GAP: Final = 2
SMALL: Final = 8  # sprites up to this many pixels wide are drawn at twice their size


def show(sprites: Any, titles: Sequence[object] | None = None, file: IO[str] | None = None) -> None:
    """Print sprites side by side, each under its title.

    `sprites` is `(N, 3, H, W)` in colour, or `(N, H, W)` or `(N, 1, H, W)` in grey: a tensor on any device, an array or
    nested lists, in [0, 1]. Values outside are clamped.
    """
    from rich.console import Console

    console = Console(file=file, highlight=False)
    blocks = (
        console.color_system is not None
        and not console.no_color
        and _can_write(console, UPPER_HALF)
    )
    drawn = []
    for picture in pictures_of(sprites):
        scale = 2 if len(picture[0]) <= SMALL else 1
        drawn.append(
            _in_blocks(_enlarged(picture, scale)) if blocks else _in_pairs(picture, console)
        )
    names = [_writable(console, str(title)) for title in titles or ()]
    names += [""] * (len(drawn) - len(names))
    for line in _side_by_side(drawn, names, console.width):
        # A line that is too long is cropped; wrapped, it would not be a picture.
        console.print(line, no_wrap=True, overflow="crop", crop=True)


def pictures_of(sprites: Any) -> list[Picture]:
    """Rows of pixels, three numbers from 0 to 255 each, for every sprite."""
    if hasattr(sprites, "detach"):
        sprites = sprites.detach().float().cpu()
    nested = sprites.tolist() if hasattr(sprites, "tolist") else sprites
    shape = _shape(nested)
    if len(shape) == 3:
        nested, shape = [[grey] for grey in nested], (shape[0], 1, *shape[1:])
    if len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape[2:]:
        raise NotSprites(_shape(sprites.tolist() if hasattr(sprites, "tolist") else sprites))
    pictures = []
    for channels in nested:
        red, green, blue = channels if shape[1] == 3 else channels * 3
        rows = zip(red, green, blue, strict=True)
        pictures.append(
            [[(_byte(r), _byte(g), _byte(b)) for r, g, b in zip(*row, strict=True)] for row in rows]
        )
    return pictures


def _shape(nested: Any) -> tuple[int, ...]:
    """The lengths of nested lists, down to the first number or the first empty list."""
    shape = []
    while isinstance(nested, (list, tuple)):
        shape.append(len(nested))
        if not nested:
            # An empty batch has nothing to draw, whatever the shape of its sprites.
            return (0, 3, 1, 1) if len(shape) == 1 else tuple(shape)
        nested = nested[0]
    return tuple(shape)


def _byte(value: float) -> int:
    return round(255 * min(1.0, max(0.0, value))) if isfinite(value) else 255 * (value > 0)


def _enlarged(picture: Picture, scale: int) -> Picture:
    return [[pixel for pixel in row for _ in range(scale)] for row in picture for _ in range(scale)]


def _in_blocks(picture: Picture) -> list[Text]:
    """Two rows of pixels in each line of text."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    lines = []
    for top in range(0, len(picture), 2):
        line = Text()
        # Below the last of an odd number of rows, the terminal's background shows.
        below = picture[top + 1] if top + 1 < len(picture) else [None] * len(picture[top])
        for upper, lower in zip(picture[top], below, strict=True):
            style = Style(
                color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower) if lower else None
            )
            line.append(UPPER_HALF, style)
        lines.append(line)
    return lines


def _in_pairs(picture: Picture, console: Console) -> list[Text]:
    """Two characters per pixel: coloured blanks, or a shade where there are no colours."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    coloured = console.color_system is not None and not console.no_color
    lines = []
    for row in picture:
        line = Text()
        for red, green, blue in row:
            if coloured:
                line.append("  ", Style(bgcolor=Color.from_rgb(red, green, blue)))
            else:
                bright = (0.299 * red + 0.587 * green + 0.114 * blue) / 255
                line.append(SHADES[min(int(bright * len(SHADES)), len(SHADES) - 1)] * 2)
        lines.append(line)
    return lines


def _side_by_side(drawn: list[list[Text]], names: list[str], width: int) -> list[Text]:
    """Rows of as many pictures as fit the terminal's width, each under its name."""
    from rich.cells import cell_len
    from rich.text import Text

    if not drawn:
        return []
    column = max(max(cell_len(name) for name in names), *(picture[0].cell_len for picture in drawn))
    across = max(1, (width + GAP) // (column + GAP))
    lines = []
    for start in range(0, len(drawn), across):
        band = drawn[start : start + across]
        titles = names[start : start + across]
        rows: list[list[Text]] = [[Text(name) for name in titles]] if any(titles) else []
        for at in range(max(len(picture) for picture in band)):
            rows.append([picture[at] if at < len(picture) else Text() for picture in band])
        for row in rows:
            line = Text()
            for cell in row:
                line.append_text(cell)
                line.append(" " * (column + GAP - cell.cell_len))
            line.right_crop(len(line.plain) - len(line.plain.rstrip()) if not line.spans else GAP)
            lines.append(line)
    return lines


def _can_write(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _writable(console: Console, text: str) -> str:
    if _can_write(console, text):
        return text
    return text.encode("ascii", "replace").decode("ascii")

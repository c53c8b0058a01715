"""Says what is wrong with the values of a picture.

Found are other weights, mixed channels, another distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.vectorizing_pixel_loops.pictures import Picture
from gpudojo.days.day8.vectorizing_pixel_loops.wrong_indices import explain_indices
from gpudojo.grading.comparing import FLOATS, numpy_values, values_close
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Failed, returned_other_type

WEIGHTS: Final = (0.299, 0.587, 0.114)
INDICES: Final = ("int64", "int32")  # the dtypes that indices may have
CHANNELS: Final = ("red", "green", "blue")
# Dimensions in which a picture may be mirrored
MIRRORED: Final = {
    -1: "left and right are swapped",
    -2: "top and bottom are swapped",
    0: "the sprites come in the opposite order",
}
TURNING: Final = ("flip(", "fliplr(", "flipud(", "rot90(")
CHOICE: Final = ("argmin of", "min of", "argmax of")  # of the nearest of all distances
FEW_PIXELS: Final = 8  # of which more than one explanation may be true
NEAR: Final = 1e-4  # as close as another order of addition leaves floats

# ---- comparing ---------------------------------------------------------------------------------


class Explanation(NamedTuple):
    """What is wrong with a picture."""

    happened: str
    misconception: str | None = None
    at: tuple[str, ...] = ()  # patterns for the line to show


class ComparedPicture(NamedTuple):
    """The values of a picture and of the reference's, and the inputs of both, as float64."""

    found: Any
    right: Any
    first_input: Any
    last_input: Any


Explain = Callable[[ComparedPicture], Explanation]


def have_same_values(found: Array | None, right: Array | None) -> bool:
    """True for equal integers, and for floats as close as another order of addition leaves them."""
    if found is None or right is None:
        return False
    if found.shape != right.shape:
        return False
    if right.dtype in INDICES:
        return found.dtype in INDICES and _are_within(0.0, found, right)
    return found.dtype in FLOATS and _are_within(NEAR, found, right)


def _are_within(tolerance: float, found: Array, right: Array) -> bool:
    """True if no value is farther from the right one than the tolerance."""
    values = numpy_values(found)
    right_values = numpy_values(right)
    return values_close(values, right_values, 0, tolerance)


def expect_same_pictures(
    seen: Mapping[str, Picture], wanted: Mapping[str, Picture], explain: Explain
) -> None:
    """Raises Failed where a picture is not the reference's; both are by the name of their size.

    It may be no tensor, or have another shape, dtype or values, which `explain` puts into words.
    Raises KeyError for a size that was not seen.
    """
    for size, right in wanted.items():
        found = seen[size]
        if found.kind != "Tensor" or found.values is None:
            key = None
            if found.kind == "ndarray":
                key = "trip-through-numpy"
            raise returned_other_type(found.kind, "a tensor", key=key)
        if have_same_values(found.values, right.values):
            continue
        if found.shape != right.shape:
            raise _other_shape(found, right)
        _expect_same_dtype(found, right)
        raise _other_values(found, right, explain)


def _other_shape(found: Picture, right: Picture) -> Failed:
    """The failure of a picture with a wrong shape. It is returned, not raised."""
    happened = f"{right.given} gave the shape {found.shape}"
    expected = f"the shape {right.shape}"
    count, *channels, height, width = right.shape
    has_channels_last = found.shape == (count, height, width, *channels)
    key = None
    if channels and has_channels_last:
        key = "channels-last"
    return Failed(happened, expected, None, key, ("return",))


def _expect_same_dtype(found: Picture, right: Picture) -> None:
    """Raises Failed for a dtype that is neither the reference's nor as good."""
    allowed = (right.dtype, "float64")
    expected = right.dtype
    if right.dtype in INDICES:
        allowed = INDICES
        expected = "int64 or int32"
    if found.dtype not in allowed:
        happened = f"the result's dtype is {found.dtype}"
        raise Failed(happened, expected, at=("half(", "return"))


def _other_values(found: Picture, right: Picture, explain: Explain) -> Failed:
    """The failure of a picture with wrong values. It is returned, not raised.

    `explain` says what is wrong with them.
    """
    values = []
    for array in (found.values, right.values, right.first_input, right.last_input):
        assert array is not None
        floats = numpy_values(array).astype("float64")
        values.append(floats)
    explanation = explain(ComparedPicture(*values))
    happened = f"{right.given}: {explanation.happened}"
    line = None
    key = explanation.misconception
    if found.changed and key is None:
        happened = f"{happened}, and `{found.changed[0]}` was modified"
        line = found.changing_line
        key = "input-modified"
    return Failed(happened, "the loop's values", line, key, explanation.at)


# ---- explaining --------------------------------------------------------------------------------

MIXED: Final = Explanation(
    "red, green and blue of one pixel were taken from different pixels", "reshape-for-permute"
)


def _are_close(found: Any, right: Any) -> bool:
    import numpy as np

    return bool(np.allclose(found, right, atol=NEAR))


def _rows_of_pixels(pictures: Any) -> Any:
    """Pictures with three channels as one row of red, green and blue for each pixel."""
    channels_last = pictures.transpose(0, 2, 3, 1)
    return channels_last.reshape(-1, 3)


def explain_difference(values: ComparedPicture) -> Explanation:
    """How many values differ, and the first of them, or that height and width are swapped.

    Raises IndexError if no value differs.
    """
    import numpy as np

    found = values.found
    right = values.right
    turned = _how_turned(values)
    if turned:
        return Explanation(turned, at=TURNING)
    is_near = abs(found - right) <= NEAR  # a NaN is not near anything
    places = np.argwhere(~is_near).tolist()
    first = places[0]
    place = tuple(first)
    found_value = found[place]
    right_value = right[place]
    count = f"{len(places)} of {found.size} values differ"
    gave = f"at {first} it gave {found_value:.6g}, not {right_value:.6g}"
    return Explanation(f"{count}; {gave}")


def _how_turned(values: ComparedPicture) -> str:
    """How the pictures are turned or mirrored, as a sentence; "" if they are not."""
    import numpy as np

    found = values.found
    right = values.right
    swapped = right.swapaxes(-1, -2)
    if swapped.shape == right.shape and values_close(found, swapped, 0, NEAR):
        return "height and width are swapped"
    for axis, words in MIRRORED.items():
        if values_close(found, np.flip(right, axis), 0, NEAR):
            return words
    return ""


def explain_grayscale(values: ComparedPicture) -> Explanation:
    """What is wrong with a gray picture, such as other weights, which can be computed.

    Raises IndexError if nothing is.
    """
    import numpy as np

    gray = values.found.reshape(-1)
    sprites = values.first_input
    mixed = sprites.reshape(-1, 3) @ WEIGHTS
    if _are_close(mixed, gray):
        return MIXED
    if not np.isfinite(gray).all():
        return explain_difference(values)
    if sprites.size > 3 and (gray == gray[0]).all():
        return Explanation(f"the result is {gray[0]:.3g} everywhere")
    # Which weights would give this picture?
    pixels = _rows_of_pixels(sprites)
    weights, *_ = np.linalg.lstsq(pixels, gray, rcond=None)
    if _are_close(pixels @ weights, gray):
        return _explain_weights(weights)
    return explain_difference(values)


def _explain_weights(weights: Any) -> Explanation:
    """What a sum of red, green and blue with these three weights is, and where to look for it."""
    import numpy as np

    factors = weights / WEIGHTS
    factor = factors[0]
    is_multiple = np.allclose(factors, factor, rtol=1e-3)
    if is_multiple and abs(factor) > 1e-3:
        happened = f"the result is {factor:.3g} times the loop's"
        return Explanation(happened, at=("mean(", "/ number", "* number"))
    # The line to show has these numbers, or one that is no weight of the loop, or takes the mean.
    red, green, blue = weights
    at = [f"numbers {red:.3g}, {green:.3g}, {blue:.3g}"]
    for weight in weights:
        is_of_loop = np.isclose(weight, WEIGHTS, rtol=0, atol=1e-3)
        if not is_of_loop.any():
            at.append(f"number {weight:.3g}")
    at.append("mean(")
    weighted = f"{red:.3f} red + {green:.3f} green + {blue:.3f} blue"
    weighted = weighted.replace("+ -", "- ")
    return Explanation(f"the result is {weighted}", "wrong-weights", tuple(at))


def explain_nearest(values: ComparedPicture) -> Explanation:
    """What is wrong with indices, such as another measure of distance.

    Raises IndexError if nothing is.
    """
    sprites = values.first_input
    palette = values.last_input
    indices = values.found.reshape(-1)
    mixed = sprites.reshape(-1, 1, 3) - palette
    mixed_distances = (mixed**2).sum(2)
    if _are_nearest(indices, mixed_distances):
        return MIXED
    pixels = _rows_of_pixels(sprites)
    apart = pixels[:, None] - palette
    fitting = []
    for measure in (*_wrong_measures(apart), *_wrong_inputs(pixels, palette)):
        if _are_nearest(indices, measure.distances):
            fitting.append(measure)
    # Of a few pixels many measures may choose the same.
    is_few = len(indices) < FEW_PIXELS
    if fitting and (fitting[0].is_usual or (len(fitting) == 1 and not is_few)):
        return Explanation(fitting[0].words, at=(*fitting[0].at, *CHOICE))
    changed = explain_indices(indices, values.right.reshape(-1), len(palette))
    if changed is not None and not is_few:
        difference = explain_difference(values)
        return Explanation(f"{difference.happened}: {changed.words}", at=changed.at)
    return explain_difference(values)


class _Measure(NamedTuple):
    """A wrong way of measuring how far colours are."""

    words: str
    distances: Any  # of each pixel to each colour
    at: tuple[str, ...]  # patterns for the line that computes them
    is_usual: bool = False  # whether it is told although others choose the same colours


def _wrong_measures(apart: Any) -> Iterator[_Measure]:
    """Yield wrong measures of the differences `apart`: (pixels, colours, channels)."""
    squares = apart**2
    yield _Measure(
        "the colours are nearest by the sum of the absolute differences",
        abs(apart).sum(2),
        ("abs(", "norm(", "cdist("),
        is_usual=True,
    )
    yield _Measure(
        "the colours are nearest by the sum of the differences, and not by that of their squares",
        abs(apart.sum(2)),
        ("sum(", "mean("),
        is_usual=True,
    )
    yield _Measure(
        "the colours are the farthest",
        -squares.sum(2),
        ("unused result", "argmax(", "max("),
        is_usual=True,
    )
    yield _Measure(
        "the sum goes over the colours, and not over red, green and blue: no index is above 2",
        squares.sum(1),
        ("sum(", "mean(", "einsum("),
    )
    yield _Measure(
        "the colours are nearest by the channel that differs most",
        abs(apart).max(2),
        ("amax(", "max(", "norm(", "cdist("),
    )
    yield _Measure(
        "the colours are nearest in their shades of grey",
        abs(apart @ WEIGHTS),
        ("numbers 0.299, 0.587, 0.114", "number 0.299", "mv(", "matmul("),
    )
    for channel, name in enumerate(CHANNELS):
        others = [each for each in range(3) if each != channel]
        yield _Measure(
            f"the colours are nearest in {name} alone",
            squares[:, :, channel],
            ("select(",),
        )
        yield _Measure(
            f"the colours are nearest without {name}", squares[:, :, others].sum(2), ("sum(",)
        )
    in_order = squares.sum(2).argsort(1).argsort(1)
    yield _Measure(
        "the colours are the second nearest",
        abs(in_order - 1),
        ("topk(", "kthvalue(", "argsort(", "sort("),
    )


def _wrong_inputs(pixels: Any, palette: Any) -> Iterator[_Measure]:
    """Yield the right measure of other pixels (pixels, channels), or another palette."""
    import numpy as np

    at = ("normalize(", "amax(", "max(", "norm(", "/ number", "* number", "/", "mean(", "-")

    def distances(pixels: Any, palette: Any) -> Any:
        return ((pixels[:, None] - palette) ** 2).sum(2)

    def divided(colors: Any, by: Any) -> Any:
        return colors / np.where(by == 0, 1, by)

    in_a_palette = "the colours are nearest in a palette that was divided by its largest value"
    yield _Measure(in_a_palette, distances(pixels, divided(palette, palette.max())), at)
    yield _Measure(
        f"{in_a_palette} in each channel", distances(pixels, divided(palette, palette.max(0))), at
    )
    yield _Measure(
        "the colours are nearest to sprites that were divided by their largest value",
        distances(divided(pixels, pixels.max()), palette),
        at,
    )
    lengths = np.sqrt((palette**2).sum(1, keepdims=True))
    products = -(pixels @ palette.T)
    yield _Measure(
        "the colours are those with the largest product, and not the nearest",
        products,
        ("einsum(", "matmul(", "bmm(", "mm(", "argmax("),
    )
    yield _Measure(
        "the colours are nearest by their angle, as if all were as bright",
        products / np.where(lengths == 0, 1, lengths).T,
        ("cosine_similarity(", "normalize(", "norm(", "/"),
    )


def _are_nearest(indices: Any, distances: Any) -> bool:
    """True if each index is that of a smallest distance in its row; there may be several."""
    import numpy as np

    rows = indices.astype(int)[:, None]
    if rows.min() < 0 or rows.max() >= distances.shape[1]:
        return False
    chosen = np.take_along_axis(distances, rows, 1)[:, 0]
    return bool((chosen <= distances.min(1) + NEAR).all())


def explain_recolor(values: ComparedPicture) -> Explanation:
    """What is wrong with a recoloured picture, such as channels mixed up with pixels.

    Raises IndexError if nothing is.
    """
    import numpy as np

    right = values.right
    pixels = _rows_of_pixels(right)
    mixed_up = pixels.reshape(right.shape)
    if _are_close(mixed_up, values.found):
        happened = "all numbers are there, but red, green and blue are mixed up with the pixels"
        return Explanation(happened, "reshape-for-permute")
    for order in itertools.permutations(range(3)):
        if _are_close(right[:, list(order)], values.found):
            colors = ", ".join(CHANNELS[channel] for channel in order)
            happened = f"the channels come in the order {colors}"
            return Explanation(happened, at=("flip(", "[::-1]"))
    if not np.isfinite(values.found).all():
        return explain_difference(values)
    return (
        _explain_other_colors(values) or _explain_other_scale(values) or explain_difference(values)
    )


def _explain_other_colors(values: ComparedPicture) -> Explanation | None:
    """Which index's colour came instead, if all pixels have colours of the palette; else None.

    None, too, where height and width, or sprites, are swapped.
    """
    import numpy as np

    palette = values.last_input
    indices = values.first_input.reshape(-1).astype(int)
    pixels = _rows_of_pixels(values.found)
    apart = abs(pixels[:, None] - palette).max(2)
    found = apart.argmin(1)
    if not (apart.min(1) <= NEAR).all() or _how_turned(values):
        return None
    if (found == indices).all():
        return None
    first = (found != indices).argmax()
    place = [int(each) for each in np.unravel_index(first, values.first_input.shape)]
    colors = f"index {indices[first]} got the colour of index {found[first]}"
    happened = f"at {place} {colors}"
    changed = explain_indices(found, indices, len(palette))
    if changed is None:
        return Explanation(happened, at=("[index]",))
    return Explanation(f"{happened}: {changed.words}", at=changed.at)


def _explain_other_scale(values: ComparedPicture) -> Explanation | None:
    """That all values are multiplied by one number, or taken from 1; None if they are not."""
    found = values.found
    right = values.right
    if _are_close(found, 1 - right):
        return Explanation("each value is 1 minus the loop's", at=("-", "neg("))
    factor = (found * right).sum() / max((right**2).sum(), NEAR)
    if abs(factor) > NEAR and abs(found - factor * right).max() <= NEAR * max(1, abs(factor)):
        happened = f"the result is {factor:.3g} times the loop's"
        return Explanation(happened, at=("* number", "/ number", "*", "/", "mul(", "div("))
    return None

"""Says what is wrong with the values of a picture.

Found are other weights, mixed channels, another distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.vectorizing_pixel_loops.pictures import Picture
from gpudojo.grading.comparing import FLOATS, numpy_values, values_close
from gpudojo.model.evidence import Array
from gpudojo.model.exercise import Failed, returned_other_type

WEIGHTS: Final = (0.299, 0.587, 0.114)
INDICES: Final = ("int64", "int32")  # the dtypes that indices may have
NEAR: Final = 1e-4  # as close as another order of addition leaves floats

# ---- comparing ---------------------------------------------------------------------------------


class Explanation(NamedTuple):
    """What is wrong with a picture."""

    happened: str
    misconception: str | None = None
    at: tuple[str, ...] = ()  # patterns for the line to show


class ComparedPicture(NamedTuple):
    """The values of a picture and of the reference's, and the inputs of both, for NumPy."""

    found: Any
    right: Any
    first_input: Any
    last_input: Any


Explain = Callable[[ComparedPicture], Explanation]


def have_same_values(found: Array | None, right: Array | None) -> bool:
    """True for equal integers, and for floats as close as another order of addition leaves them."""
    if found is None or right is None or found.shape != right.shape:
        return False
    found_values = numpy_values(found)
    right_values = numpy_values(right)
    if right.dtype in INDICES:
        return found.dtype in INDICES and values_close(found_values, right_values, 0, 0)
    return found.dtype in FLOATS and values_close(found_values, right_values, 0, NEAR)


def expect_same_pictures(
    seen: Mapping[str, Picture], wanted: Mapping[str, Picture], explain: Explain
) -> None:
    """Raises Failed where a picture is not the reference's.

    It may be no tensor, or have another shape, dtype or values, which `explain` puts into words.
    """
    for size, right in wanted.items():
        found = seen[size]
        if found.kind != "Tensor" or found.values is None:
            key = "trip-through-numpy" if found.kind == "ndarray" else None
            raise returned_other_type(found.kind, "a tensor", key=key)
        if have_same_values(found.values, right.values):
            continue
        if found.shape != right.shape:
            raise _other_shape(found, right)
        _expect_same_dtype(found, right)
        explanation = explain(_compared_values(found, right))
        raise _other_values(found, right, explanation)


def _compared_values(found: Picture, right: Picture) -> ComparedPicture:
    """The values of two pictures that have some, and of the reference's inputs."""
    return ComparedPicture(
        found=_values_of(found.values),
        right=_values_of(right.values),
        first_input=_values_of(right.first_input),
        last_input=_values_of(right.last_input),
    )


def _values_of(array: Array | None) -> Any:
    """The values of an array that is known to be there."""
    assert array is not None
    return numpy_values(array)


def _other_shape(found: Picture, right: Picture) -> Failed:
    """The failure of a picture with a wrong shape."""
    happened = f"{right.given} gave the shape {tuple(found.shape)}"
    expected = f"the shape {tuple(right.shape)}"
    count, *channels, height, width = right.shape
    has_channels_last = found.shape == [count, height, width, *channels]
    key = "channels-last" if channels and has_channels_last else None
    return Failed(happened, expected, None, key, ("return",))


def _expect_same_dtype(found: Picture, right: Picture) -> None:
    """Raises Failed for a dtype that is neither the reference's nor as good."""
    expected = right.dtype
    allowed = (right.dtype, "float64")
    if right.dtype in INDICES:
        expected = "int64 or int32"
        allowed = INDICES
    if found.dtype not in allowed:
        happened = f"the result's dtype is {found.dtype}"
        raise Failed(happened, expected, at=("half(", "return"))


def _other_values(found: Picture, right: Picture, explanation: Explanation) -> Failed:
    """The failure of a picture with wrong values."""
    happened = f"{right.given}: {explanation.happened}"
    expected = "the loop's values"
    if found.changed and explanation.misconception is None:
        changed = found.changed[0]
        happened = f"{happened}, and `{changed}` was modified"
        line = found.changing_line
        return Failed(happened, expected, line, "input-modified", explanation.at)
    return Failed(happened, expected, None, explanation.misconception, explanation.at)


# ---- explaining --------------------------------------------------------------------------------

MIXED: Final = Explanation(
    "red, green and blue of one pixel were taken from different pixels", "reshape-for-permute"
)


def _are_close(found: Any, right: Any) -> bool:
    import numpy as np

    return bool(np.allclose(found, right, atol=NEAR))


def _rows_of_pixels(pictures: Any) -> Any:
    """Pictures with three channels as one row of red, green and blue for each pixel."""
    return pictures.transpose(0, 2, 3, 1).reshape(-1, 3)


def explain_difference(values: ComparedPicture) -> Explanation:
    """How many values differ, and the first of them, or that height and width are swapped."""
    import numpy as np

    found = values.found
    right = values.right
    floats = found.astype("float64")
    if _is_transposed_picture(floats, right):
        return Explanation("height and width are swapped")
    differs = ~(abs(floats - right) <= NEAR)  # a NaN is not near anything
    place = np.unravel_index(differs.argmax(), differs.shape)
    indices = [int(index) for index in place]
    found_value = found[place]
    right_value = right[place]
    count = f"{differs.sum()} of {floats.size} values differ"
    gave = f"at {indices} it gave {found_value:.6g}, not {right_value:.6g}"
    return Explanation(f"{count}; {gave}")


def _is_transposed_picture(found: Any, right: Any) -> bool:
    """True if square pictures have the values of the right ones with height and width swapped."""
    if found.ndim < 3:
        return False
    *_, height, width = found.shape
    return height == width and values_close(found, right.swapaxes(-1, -2), 0, NEAR)


def explain_grayscale(values: ComparedPicture) -> Explanation:
    """What is wrong with a gray picture, such as other weights, which can be computed."""
    import numpy as np

    gray = values.found.astype("float64").reshape(-1)
    sprites = values.first_input.astype("float64")
    mixed = sprites.reshape(-1, 3) @ WEIGHTS
    if _are_close(mixed, gray):
        return MIXED
    if not np.isfinite(gray).all():
        return explain_difference(values)
    # Which weights would give this picture?
    pixels = _rows_of_pixels(sprites)
    weights, *_ = np.linalg.lstsq(pixels, gray, rcond=None)
    if _are_close(pixels @ weights, gray):
        return _explain_weights(weights)
    return explain_difference(values)


def _explain_weights(weights: Any) -> Explanation:
    """What a sum of red, green and blue with these weights is."""
    import numpy as np

    factors = weights / WEIGHTS
    factor = factors[0]
    is_multiple = np.allclose(factors, factor, rtol=1e-3)
    if is_multiple and abs(factor) > 1e-3:
        return Explanation(f"the result is {factor:.3g} times the loop's")
    # The line to show has these numbers, or one that is no weight of the loop, or takes the mean.
    red, green, blue = weights
    at = [f"numbers {red:.3g}, {green:.3g}, {blue:.3g}"]
    for weight in weights:
        is_weight = np.isclose(weight, WEIGHTS, rtol=0, atol=1e-3)
        if not is_weight.any():
            at.append(f"number {weight:.3g}")
    if np.ptp(weights) < 1e-3:
        at.append("mean(")
    weighted = f"{red:.3f} red + {green:.3f} green + {blue:.3f} blue"
    happened = f"the result is {weighted.replace('+ -', '- ')}"
    return Explanation(happened, "wrong-weights", tuple(at))


def explain_nearest(values: ComparedPicture) -> Explanation:
    """What is wrong with indices, such as another measure of distance or another palette."""
    sprites = values.first_input.astype("float64")
    palette = values.last_input.astype("float64")
    indices = values.found.reshape(-1)
    mixed = sprites.reshape(-1, 1, 3) - palette
    if _are_nearest(indices, (mixed**2).sum(2)):
        return MIXED
    pixels = _rows_of_pixels(sprites)
    apart = pixels[:, None] - palette
    measures = {
        "nearest by the sum of the absolute differences": abs(apart).sum(2),
        "nearest by the square of the sum of the differences": apart.sum(2) ** 2,
        "the farthest": -(apart**2).sum(2),
    }
    for words, distances in measures.items():
        if len(palette) > 1 and _are_nearest(indices, distances):
            return Explanation(f"the colours are {words}")
    return _explain_renumbering(values) or explain_difference(values)


def _are_nearest(indices: Any, distances: Any) -> bool:
    """True if each index is that of the smallest distance in its row."""
    return bool((distances.argmin(1) == indices).all())


def _replacements(before: Any, after: Any) -> dict[int, int]:
    """What each number of an array became, in order; empty where one number became several."""
    numbers_before = before.reshape(-1).tolist()
    numbers_after = after.reshape(-1).tolist()
    pairs = set(zip(numbers_before, numbers_after, strict=True))
    became = dict(sorted(pairs))
    return became if len(became) == len(pairs) else {}


def _explain_renumbering(values: ComparedPicture) -> Explanation | None:
    """The explanation that every index became another one.

    None where one became several, or several one.
    """
    became = _replacements(values.right, values.found)
    different = set(became.values())
    if len(became) < 2 or len(different) < len(became):
        return None
    shifts = {new - old for old, new in became.items()}
    at = ("palette =",) if len(shifts) > 1 else ()  # not all shifted: another order
    for old, new in became.items():
        if old != new:
            return Explanation(f"every index {old} became {new}", None, at)
    return None


def explain_recolor(values: ComparedPicture) -> Explanation:
    """What is wrong with a recoloured picture, such as channels mixed up with pixels."""
    right = values.right
    mixed_up = _rows_of_pixels(right).reshape(right.shape)
    if _are_close(mixed_up, values.found):
        happened = "all numbers are there, but red, green and blue are mixed up with the pixels"
        return Explanation(happened, "reshape-for-permute")
    return _explain_colors(values) or explain_difference(values)


def _explain_colors(values: ComparedPicture) -> Explanation | None:
    """The explanation that all pixels of one index got the colour of another.

    None where the colours are right, or not of the palette, and where pixels of one index got
    several colours.
    """
    pixels = _rows_of_pixels(values.found)
    distances = abs(pixels[:, None] - values.last_input).max(2)
    if not (distances.min(1) <= NEAR).all():
        return None
    became = _replacements(values.first_input, distances.argmin(1))
    for index, color in became.items():
        if index != color:
            return Explanation(f"pixels with the index {index} got colour {color} of the palette")
    return None
